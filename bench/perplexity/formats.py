"""Perplexity of model files in different formats, llama.cpp beside Kvasir on the same file."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from bench.perplexity.score import Text, build, llama_cpp, perplexity
from kvasir.checkpoints.loaded import LoadedModel, load_model


def measure_formats(models: list[Path], text: Text, peer: str) -> tuple[dict[str, Any], str]:
    """The record and its table; ``peer``: llama-perplexity."""
    rows = [_measure(model, text, peer) for model in models]
    lines = [
        "| file | most matrices | Kvasir | llama.cpp | difference |",
        "|---|---|--:|--:|--:|",
        *(
            f"| {row['model']} | {row['formats']} | {row['kvasir']:.4f} | {row['llama.cpp']:.4f} "
            f"| {row['difference']:+.2%} |"
            for row in rows
        ),
    ]
    return {"rows": rows}, "\n".join(lines) + "\n"


def _measure(model: Path, text: Text, peer: str) -> dict[str, Any]:
    loaded = load_model(str(model))
    ours = perplexity(build(loaded), text.chunks(loaded))
    theirs = llama_cpp(peer, model, text)
    row = {
        "model": loaded.source.name,
        "formats": _formats(loaded),
        "kvasir": ours,
        "llama.cpp": theirs,
        "difference": ours / theirs - 1,
    }
    print(row, file=sys.stderr, flush=True)
    return row


def _formats(loaded: LoadedModel) -> str:
    """The formats of the matrices, the one with most elements first."""
    count: Counter[str] = Counter()
    for info in loaded.source.tensors.values():
        if len(info.shape) > 1:
            count[info.format] += info.shape[0] * info.shape[1]
    return ", ".join(name for name, _ in count.most_common(3))
