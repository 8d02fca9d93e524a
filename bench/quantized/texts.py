"""Chunks of tokens that a model writes at temperature 1, several at a time."""

from __future__ import annotations

import json
from pathlib import Path

from kvasir.evaluation.chunks import Chunks
from kvasir.offline.llm import LLM
from kvasir.validation.sampling import SamplingParams

BEGIN = 1
"""SmolLM2's begin of a message, which is its begin of a text, too."""


def written(model: Path, n: int, size: int, kept: Path) -> Chunks:
    """``n`` chunks of ``size``, chunk i by seed i; those in ``kept`` are not written again."""
    if kept.exists():
        found: Chunks = json.loads(kept.read_text(encoding="utf-8"))
        return found[:n]
    with LLM(str(model), max_model_len=size, max_num_seqs=16) as llm:
        params = [
            SamplingParams(temperature=1.0, max_tokens=size - 1, seed=i, ignore_eos=True)
            for i in range(n)
        ]
        answers = llm.generate([[BEGIN]] * n, params, use_tqdm=False)
    chunks = [[BEGIN, *answer.outputs[0].token_ids] for answer in answers]
    kept.write_text(json.dumps(chunks), encoding="utf-8")
    return chunks
