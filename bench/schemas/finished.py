"""E22: what a model writes at temperature 1 under the grammar of each schema is valid.

Answers go to a file of lines of JSON as they come; whoever starts again goes on behind them.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from bench.schemas.cases import Case
from bench.schemas.validity import fault
from kvasir.core.errors import RequestError
from kvasir.grammar.constraint import schema_grammar
from kvasir.grammar.matcher import GrammarTokens
from kvasir.offline.llm import LLM
from kvasir.validation.sampling import SamplingParams, StructuredOutputs

MAX_SHOWN = 2000
"""Characters of a schema that the model is shown: it need not understand it."""


ROUND = 4
"""Answers of each stream that are asked for together: the next one begins when one ends."""


class Written(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    id: str
    refused: str = ""
    finish: str = ""
    n_tokens: int = 0
    text: str = ""
    fault: str | None = None
    """Of a finished answer: why it is not valid."""


class Answers:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        self.all = [msgspec.json.decode(line, type=Written) for line in whole]
        if len(whole) < len(lines):  # the last one was being written
            path.write_bytes(b"".join(whole))

    def add(self, written: Iterable[Written]) -> None:
        found = list(written)
        with self._path.open("ab") as file:
            file.writelines(msgspec.json.encode(one) + b"\n" for one in found)
        self.all += found

    def left_of(self, cases: Iterable[Case]) -> Iterator[Case]:
        known = {one.id for one in self.all}
        return (case for case in cases if case.name not in known)


def write_answers(
    llm: LLM,
    tokens: GrammarTokens,
    cases: Iterable[Case],
    answers: Answers,
    sizes: tuple[int, int],
    say: Callable[[], None],
) -> None:
    """``sizes``: tokens of an answer at most, and answers at once. ``say``: there are more."""
    max_tokens, n_streams = sizes
    left = answers.left_of(cases)
    while some := list(islice(left, ROUND * n_streams)):
        refused = [(case, _refusal(case, tokens)) for case in some]
        answers.add(Written(case.name, refused=why) for case, why in refused if why)
        asked = [case for case, why in refused if not why]
        answers.add(_answered(llm, asked, max_tokens))
        say()


def _refusal(case: Case, tokens: GrammarTokens) -> str:
    try:
        tokens.compile(schema_grammar(case.schema).text)
    except RequestError as error:
        return error.message
    return ""


def _answered(llm: LLM, cases: Sequence[Case], max_tokens: int) -> list[Written]:
    if not cases:
        return []
    params = [
        SamplingParams(
            temperature=1.0,
            max_tokens=max_tokens,
            seed=seed_of(case.name),
            structured_outputs=StructuredOutputs(json=case.schema),
        )
        for case in cases
    ]
    outputs = llm.chat([_conversation(case) for case in cases], params, use_tqdm=False)
    chosen = [output.outputs[0] for output in outputs]
    return [
        judged(case, one.text, one.finish_reason or "", len(one.token_ids))
        for case, one in zip(cases, chosen, strict=True)
    ]


def judged(case: Case, text: str, finish: str, n_tokens: int) -> Written:
    wrong = None
    if finish == "stop":
        try:
            wrong = fault(case.schema, json.loads(text))
        except ValueError as error:
            wrong = f"not JSON: {error}"
    return Written(case.name, finish=finish, n_tokens=n_tokens, text=text, fault=wrong)


def _conversation(case: Case) -> list[dict[str, str]]:
    shown = json.dumps(case.schema, ensure_ascii=False)[:MAX_SHOWN]
    asked = f"Answer with a short JSON value that is valid against this schema:\n{shown}"
    return [{"role": "user", "content": asked}]


def seed_of(name: str) -> int:
    """Of a schema's answer, whatever others there are."""
    return zlib.crc32(name.encode())


def told(written: Sequence[Written]) -> dict[str, Any]:
    """Counts, and everything that is wrong."""
    finished = [one for one in written if one.finish == "stop"]
    outcomes = Counter("refused" if one.refused else one.finish for one in written)
    n_accepted = len(written) - outcomes["refused"]
    return {
        "schemas": len(written),
        "accepted_share": round(n_accepted / max(len(written), 1), 4),
        "outcomes": dict(sorted(outcomes.items())),
        "finished": len(finished),
        "valid": sum(one.fault is None for one in finished),
        "tokens": sum(one.n_tokens for one in written),
        "faults": {one.id: one.fault for one in finished if one.fault is not None},
    }
