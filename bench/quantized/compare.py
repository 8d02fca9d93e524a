"""Several models beside one origin, on the same chunks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine
from kvasir.evaluation.chunks import Chunks
from kvasir.evaluation.figures import (
    Against,
    Floats64,
    TokenScores,
    against,
    interval,
    log_probabilities,
    scores,
)
from kvasir.evaluation.reader import STEP, ChunkReader

_ROWS = 32
"""That are in float64 together."""


class Compared(NamedTuple):
    """Of each model, by its name, beside the origin."""

    figures: Mapping[str, Against]
    klds: Mapping[str, Floats64]
    """[chunks, scored tokens]."""

    def ratio(self, one: str, other: str) -> dict[str, float]:
        """Of two models' divergences; its error from differences of chunks, which are paired."""
        base = float(self.klds[other].mean())
        value = float(self.klds[one].mean()) / base
        gaps = interval(self.klds[one] - value * self.klds[other])
        return {
            "value": value,
            "low": value + (gaps.low - gaps.value) / base,
            "high": value + (gaps.high - gaps.value) / base,
        }


def compare(
    origin: Path, models: Mapping[str, tuple[Path, str]], chunks: Chunks, dtype: str
) -> Compared:
    """``models``: folder and dtype of each; ``dtype``: the origin's."""
    size = len(chunks[0])
    reference = _reader(origin, dtype, size)
    readers = {name: _reader(path, of, size) for name, (path, of) in models.items()}
    rows: dict[str, list[TokenScores]] = {name: [] for name in models}
    for i, tokens in enumerate(chunks):
        for name, found in _chunk(tokens, reference, readers).items():
            rows[name].append(found)
        print(f"chunk {i + 1} of {len(chunks)}", file=sys.stderr, flush=True)
    joined = {
        name: TokenScores(*(np.stack(each) for each in zip(*found, strict=True)))
        for name, found in rows.items()
    }
    figures = {name: against(origin.name, found) for name, found in joined.items()}
    return Compared(figures, {name: found.kld for name, found in joined.items()})


def _reader(path: Path, dtype: str, size: int) -> ChunkReader:
    options = EngineOptions(
        model=str(path),
        dtype=dtype,
        max_model_len=size,
        max_num_seqs=1,
        max_num_batched_tokens=STEP,
        async_scheduling=False,
        enable_prefix_caching=False,
    )
    return ChunkReader(build_engine(options, loaded=load_model(str(path))).executor)


def _chunk(
    tokens: list[int], reference: ChunkReader, readers: Mapping[str, ChunkReader]
) -> dict[str, TokenScores]:
    """Of the tokens behind the middle one."""
    half, size = len(tokens) // 2, len(tokens)
    parts: dict[str, list[TokenScores]] = {name: [] for name in readers}
    for begin in range(0, size, STEP):
        end = min(begin + STEP, size)
        n = max(0, end - max(begin, half))
        expected = reference.read(tokens, begin, end, n)
        targets = np.array(tokens[end - n + 1 : end + 1], np.int64)
        found = {name: each.read(tokens, begin, end, n) for name, each in readers.items()}
        for name, part in _parts(found, expected, targets):
            parts[name].append(part)
    return {
        name: TokenScores(*(np.concatenate(each) for each in zip(*runs, strict=True)))
        for name, runs in parts.items()
    }


def _parts(
    found: Mapping[str, NDArray[np.float32]],
    expected: NDArray[np.float32],
    targets: NDArray[np.int64],
) -> list[tuple[str, TokenScores]]:
    parts = []
    for at in range(0, len(targets), _ROWS):
        to = min(at + _ROWS, len(targets))
        logq = log_probabilities(expected[at:to])
        for name, logits in found.items():
            part = scores(log_probabilities(logits[at:to]), logq, targets[at:to])
            parts.append((name, part))
    return parts
