"""Perplexity of one model by the type of its KV cache."""

from __future__ import annotations

import sys
from typing import Any

from bench.perplexity.score import Text, build, perplexity
from kvasir.checkpoints.loaded import load_model


def measure_kv(
    model: str | None, text: Text, dtypes: tuple[str, ...]
) -> tuple[dict[str, Any], str]:
    """The record and its table; differences are to the first of ``dtypes``."""
    loaded = load_model(model)
    chunks = text.chunks(loaded)
    found: dict[str, float] = {}
    for dtype in dtypes:
        found[dtype] = perplexity(build(loaded, kv=dtype), chunks)
        print(dtype, found[dtype], file=sys.stderr, flush=True)
    base = found[dtypes[0]]
    lines = [
        f"| KV cache | perplexity | against {dtypes[0]} |",
        "|---|--:|--:|",
        *(f"| {name} | {ppl:.4f} | {ppl / base - 1:+.2%} |" for name, ppl in found.items()),
    ]
    return {"model": loaded.source.name, "perplexity": found}, "\n".join(lines) + "\n"
