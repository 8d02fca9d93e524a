"""Perplexity against speed: activation blocks and modes of one model, llama.cpp beside them on the
same file.

    python bench/perplexity.py TEXT [--model FILE] [--llama-perplexity BINARY] [--chunks 80]
    [--output NAME]

The text is cut into chunks of 512 tokens; the second half of each is scored, as llama-perplexity
does with -c 512. "Linear GOPS" counts 2 x weights x rows of the linear layers over the time of
their phases in a prefill of 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import fingerprint
from kvasir.config.options import EngineOptions
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, SlotOpen, StepPlan
from kvasir.engine.build import LoadedModel, build_engine, load_model
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.ir.numerics import MAX_ACT_BLOCK
from kvasir.tokenizer.load import load_tokenizer

CHUNK = 512
BLOCKS = (32, 64, 128, 256)
GREEDY = TokenParams(seed=0, max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Measured:
    mode: str
    block: int | None
    """Activations that share a scale; None where activations are not quantized."""
    perplexity: float
    linear_gops: float


def build(loaded: LoadedModel, dtype: str, block: int | None) -> CpuExecutor:
    options = EngineOptions(
        dtype=dtype,
        max_model_len=CHUNK,
        max_num_seqs=1,
        max_num_batched_tokens=CHUNK,
        kv_memory="256MiB",
        async_scheduling=False,
    )
    executor = build_engine(options, loaded=loaded, act_block=block or MAX_ACT_BLOCK).executor
    if not isinstance(executor, CpuExecutor):
        raise TypeError("needs the native executor")
    return executor


def plan(tokens: list[int], n_logits: int) -> StepPlan:
    row = Row(0, 0, tuple(tokens), tuple(range(CHUNK // 16)), n_logits=n_logits)
    return StepPlan(0, (row,), (SlotOpen(0, GREEDY, tuple(tokens[:1])),))


def losses(executor: CpuExecutor, tokens: list[int]) -> NDArray[np.float64]:
    """Negative log probability of each token of the second half but its first."""
    half = CHUNK // 2
    logits = np.zeros((half, executor.spec.vocab_size), np.float32)
    executor.run(plan(tokens, half), logits=logits)
    scores = logits[:-1].astype(np.float64)
    top = scores.max(axis=1)
    logsumexp = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
    chosen: NDArray[np.float64] = scores[np.arange(half - 1), tokens[half + 1 :]]
    return np.asarray(logsumexp - chosen, np.float64)


def linear_gops(loaded: LoadedModel, executor: CpuExecutor, tokens: list[int]) -> float:
    """Best of ten prefills, phase by phase."""
    records = executor.lowered.records
    phases = sorted({record.phase for record in records})
    is_linear = [
        any(r.kind == "linear" and not r.tail for r in records if r.phase == p) for p in phases
    ]
    best = np.full(executor.phases, np.inf)
    for _ in range(10):
        seconds = np.zeros(executor.phases)
        executor.run(plan(tokens, 1), seconds=seconds)
        best = np.minimum(best, seconds)
    config = loaded.config
    heads = (config.n_heads + 2 * config.n_kv_heads + config.n_heads) * config.head_dim
    per_layer = config.hidden_size * (heads + 3 * config.ffn_size)
    return 2 * config.n_layers * per_layer * CHUNK / float(best[is_linear].sum()) / 1e9


def measure(
    loaded: LoadedModel, dtype: str, block: int | None, chunks: list[list[int]]
) -> Measured:
    executor = build(loaded, dtype, block)
    loss = np.concatenate([losses(executor, chunk) for chunk in chunks])
    gops = linear_gops(loaded, executor, chunks[0])
    result = Measured(dtype, block, float(np.exp(loss.mean())), gops)
    print(result, file=sys.stderr, flush=True)
    return result


def llama_cpp(binary: str, model: Path, text: Path, n_chunks: int) -> float:
    command = [
        binary,
        "-m",
        str(model),
        "-f",
        str(text),
        "-c",
        str(CHUNK),
        "--chunks",
        str(n_chunks),
        "-fa",
        "on",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if found is None:
        raise ValueError(f"{binary} printed no estimate")
    return float(found[1])


HEADER = (
    "| mode | activation block | perplexity | against float32 | against llama.cpp | linear GOPS |\n"
    "|---|--:|--:|--:|--:|--:|\n"
)


def table(rows: list[Measured], peer: float | None) -> str:
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--llama-perplexity")
    parser.add_argument("--chunks", type=int, default=80)
    parser.add_argument("--output", type=Path, help="without suffix; .json and .md are written")
    args = parser.parse_args()
    loaded = load_model(args.model)
    tokens = load_tokenizer(loaded.source).encode(args.text.read_text())
    chunks = [tokens[i * CHUNK : (i + 1) * CHUNK] for i in range(args.chunks)]
    rows = [measure(loaded, "auto", block, chunks) for block in BLOCKS]
    rows += [measure(loaded, dtype, None, chunks) for dtype in ("bfloat16", "float32")]
    peer = None
    if args.llama_perplexity:
        peer = llama_cpp(args.llama_perplexity, loaded.source.path, args.text, args.chunks)
    print(table(rows, peer))
    if args.output:
        args.output.with_suffix(".md").write_text(table(rows, peer))
        record = {
            "model": loaded.source.name,
            "text": args.text.name,
            "chunks": args.chunks,
            "rows": [{name: getattr(row, name) for name in Measured.__slots__} for row in rows],
            "llama_cpp_perplexity": peer,
            "fingerprint": fingerprint(),
            "ceilings": measure_ceilings(len(os.sched_getaffinity(0))),
        }
        args.output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
