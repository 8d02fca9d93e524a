"""Perplexity as llama-perplexity does it: chunks of 512 tokens, the second half of each scored."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvasir.checkpoints.loaded import LoadedModel
from kvasir.config.options import EngineOptions
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, SlotOpen, StepPlan, TableChange
from kvasir.engine.build import build_engine
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.ir.numerics import MAX_ACT_BLOCK
from kvasir.tokenizer.load import load_tokenizer

CHUNK = 512
GREEDY = TokenParams(seed=0, max_tokens=1, temperature=0.0)

Tokens = list[int]


@dataclass(frozen=True, slots=True)
class Text:
    """The first ``n_chunks`` chunks of a file are scored."""

    path: Path
    n_chunks: int

    def chunks(self, loaded: LoadedModel) -> list[Tokens]:
        """Exits when the text is shorter."""
        tokens = load_tokenizer(loaded.source).encode(self.path.read_text(encoding="utf-8"))
        if len(tokens) < self.n_chunks * CHUNK:
            sys.exit(f"{self.path} has {len(tokens)} tokens: {self.n_chunks} chunks need more")
        return [tokens[i * CHUNK : (i + 1) * CHUNK] for i in range(self.n_chunks)]


def build(
    loaded: LoadedModel, dtype: str = "auto", block: int | None = None, kv: str = "auto"
) -> CpuExecutor:
    """An executor for one chunk at a time. ``block``: activations that share a scale."""
    options = EngineOptions(
        dtype=dtype,
        kv_cache_dtype=kv,
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


def chunk_plan(tokens: Sequence[int], n_logits: int) -> StepPlan:
    """A chunk as one step; the last ``n_logits`` tokens give logits."""
    row = Row(0, 0, tuple(tokens), n_logits=n_logits)
    table = TableChange(0, 0, 0, tuple(range(CHUNK // 16)))
    return StepPlan(0, (row,), (SlotOpen(0, GREEDY, tuple(tokens[:1])),), (table,))


def perplexity(executor: CpuExecutor, chunks: Sequence[Tokens]) -> float:
    return float(np.exp(np.concatenate([_losses(executor, chunk) for chunk in chunks]).mean()))


def _losses(executor: CpuExecutor, tokens: Tokens) -> NDArray[np.float64]:
    """Negative log probability of each token of the second half but its first."""
    half = CHUNK // 2
    logits = np.zeros((half, executor.sizes.vocab_size), np.float32)
    executor.run(chunk_plan(tokens, half), logits=logits)
    scores = logits[:-1].astype(np.float64)
    top = scores.max(axis=1)
    logsumexp = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
    chosen: NDArray[np.float64] = scores[np.arange(half - 1), tokens[half + 1 :]]
    return np.asarray(logsumexp - chosen, np.float64)


def llama_cpp(binary: str, model: Path, text: Text) -> float:
    """What llama-perplexity says of the same chunks."""
    numbers = {"-c": CHUNK, "--chunks": text.n_chunks}
    words = [word for flag, number in numbers.items() for word in (flag, str(number))]
    command = [binary, "-m", str(model), "-f", str(text.path), "-fa", "on", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if found is None:
        raise ValueError(f"{binary} printed no estimate")
    return float(found[1])
