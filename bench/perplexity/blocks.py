"""Perplexity against speed: activation blocks and modes of one model.

"Linear GOPS" counts 2 x weights x rows of the linear layers over the time of their phases in a
prefill of 512 tokens.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.perplexity.score import CHUNK, Text, Tokens, build, chunk_plan, llama_cpp, perplexity
from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.exec.cpu.executor import CpuExecutor

BLOCKS = (32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Measured:
    mode: str
    block: int | None
    """Activations that share a scale; None where activations are not quantized."""
    perplexity: float
    linear_gops: float


def measure_blocks(model: str | None, text: Text, peer: str | None) -> tuple[dict[str, Any], str]:
    """The record and its table; ``peer``: llama-perplexity."""
    loaded = load_model(model)
    chunks = text.chunks(loaded)
    rows = [_measure(loaded, "auto", block, chunks) for block in BLOCKS]
    rows += [_measure(loaded, dtype, None, chunks) for dtype in ("bfloat16", "float32")]
    theirs = None if peer is None else llama_cpp(peer, loaded.source.path, text)
    record = {
        "model": loaded.source.name,
        "rows": [{name: getattr(row, name) for name in Measured.__slots__} for row in rows],
        "llama_cpp_perplexity": theirs,
    }
    return record, _table(rows, theirs)


def _measure(loaded: LoadedModel, dtype: str, block: int | None, chunks: list[Tokens]) -> Measured:
    executor = build(loaded, dtype, block)
    gops = _linear_gops(loaded, executor, chunks[0])
    result = Measured(dtype, block, perplexity(executor, chunks), gops)
    print(result, file=sys.stderr, flush=True)
    return result


def _linear_gops(loaded: LoadedModel, executor: CpuExecutor, tokens: Tokens) -> float:
    """Best of ten prefills, phase by phase."""
    records = executor.lowered.records
    phases = sorted({record.phase for record in records})
    is_linear = [
        any(r.kind == "linear" and not r.tail for r in records if r.phase == p) for p in phases
    ]
    best = np.full(executor.phases, np.inf)
    for _ in range(10):
        seconds = np.zeros(executor.phases)
        executor.run(chunk_plan(tokens, 1), seconds=seconds)
        best = np.minimum(best, seconds)
    config = loaded.config
    columns = sum(
        2 * (x.n_heads + x.n_kv_heads) * x.head_dim + 3 * x.ffn_size for x in config.layers
    )
    return 2 * config.hidden_size * columns * CHUNK / float(best[is_linear].sum()) / 1e9


HEADER = (
    "| mode | activation block | perplexity | against float32 | against llama.cpp | linear GOPS |\n"
    "|---|--:|--:|--:|--:|--:|\n"
)


def _table(rows: list[Measured], peer: float | None) -> str:
    exact = next(row.perplexity for row in rows if row.mode == "float32")
    text = HEADER
    for row in rows:
        ppl = row.perplexity
        against = "" if peer is None else f"{ppl / peer - 1:+.2%}"
        text += f"| {row.mode} | {row.block or ''} | {ppl:.4f} | {ppl / exact - 1:+.2%} "
        text += f"| {against} | {row.linear_gops:.0f} |\n"
    if peer is not None:
        text += f"| llama.cpp | 32 | {peer:.4f} | {peer / exact - 1:+.2%} | | |\n"
    return text
