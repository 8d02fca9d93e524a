"""What grammars take: seconds to compile one, and to make the mask of each token of an answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.schemas.cases import Case
from kvasir.core.errors import RequestError
from kvasir.core.params import mask_words
from kvasir.grammar.constraint import schema_grammar
from kvasir.grammar.matcher import GrammarTokens, Matcher
from kvasir.grammar.vocabulary import Vocabulary
from tests.byte_grammar import spelled

BOUNDS = (2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 6e-2, 1.0)
"""Seconds: the buckets of a histogram."""


@dataclass(slots=True)
class GrammarTimes:
    """Seconds each."""

    prepare: list[float] = field(default_factory=list)
    """From a schema to a grammar."""
    compile: list[float] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)
    """To begin an answer with what is compiled."""
    masks: list[float] = field(default_factory=list)
    n_refused: int = 0

    def told(self) -> dict[str, Any]:
        times = {"prepare": self.prepare, "compile": self.compile, "cached": self.cached}
        made = {f"{name}_seconds": histogram(found) for name, found in times.items()}
        return {"refused": self.n_refused, **made, "mask_seconds": histogram(self.masks)}


def measure(cases: Iterable[Case], vocabulary: Vocabulary, n_ids: int) -> GrammarTimes:
    """Over the valid instances of what is accepted, in the tokenizer's own tokens, and the end of
    each: it is drawn under a mask like any other."""
    tokens = GrammarTokens(vocabulary, n_ids)
    bits = np.zeros(mask_words(n_ids), np.uint32)
    times = GrammarTimes()
    for case in cases:
        matcher = _compiled(case, tokens, times)
        if matcher is None:
            times.n_refused += 1
            continue
        for one in case.instances:
            if one.is_valid:
                _follow(matcher, vocabulary.encode(spelled(one.value)), bits, times)
    return times


def _compiled(case: Case, tokens: GrammarTokens, times: GrammarTimes) -> Matcher | None:
    began = time.perf_counter()
    try:
        text = schema_grammar(case.schema).text
        prepared = time.perf_counter()
        matcher = tokens.compile(text)
    except RequestError:
        return None
    times.compile.append(time.perf_counter() - prepared)
    times.prepare.append(prepared - began)
    return matcher


def _follow(
    matcher: Matcher,
    ids: Sequence[int],
    bits: np.ndarray[tuple[int], np.dtype[np.uint32]],
    times: GrammarTimes,
) -> None:
    began = time.perf_counter()
    state = matcher.copy()
    times.cached.append(time.perf_counter() - began)
    for token in (*ids, None):
        began = time.perf_counter()
        try:
            state.fill((), bits)
            times.masks.append(time.perf_counter() - began)
            if token is not None:
                state.consume([token])
        except ValueError:  # valid, but written otherwise than the grammar has it
            return


def histogram(seconds: Sequence[float]) -> dict[str, Any]:
    """Counts up to each bound, and percentiles; nearest ranks."""
    if not seconds:
        return {"count": 0}
    values = np.sort(np.asarray(seconds))
    ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    return {
        "count": len(values),
        "mean": float(f"{values.mean():.4g}"),
        **{name: float(f"{_rank(values, q):.4g}") for name, q in ranks.items()},
        "max": float(f"{values[-1]:.4g}"),
        "up_to": {f"{bound:g}": int(np.searchsorted(values, bound, "right")) for bound in BOUNDS},
    }


def _rank(values: np.ndarray[tuple[int], np.dtype[np.float64]], q: float) -> float:
    return float(values[min(len(values) - 1, int(q * len(values)))])
