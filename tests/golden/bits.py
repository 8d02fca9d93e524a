"""Digests of what the native executor computes. ``python -m tests.golden.bits`` writes them anew:
for a new ``kvasir.engine.keys.ARITHMETIC`` alone, because caches and logs of requests outlive an
upgrade and must not meet an engine that computes something else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

from kvasir.engine.keys import ARITHMETIC
from tests import tiny
from tests.loading import load
from tests.native import native_logits

FILE = Path(__file__).with_name("bits.json")
TOKENS = tuple(7 * i % 90 + 3 for i in range(100))


def _gguf(config: Callable[[], tiny.TinyModel], format: str) -> Callable[[Path], Path]:
    return lambda folder: tiny.write_gguf_model(config(), folder / "m.gguf", format)


MODELS: Mapping[str, tuple[Callable[[Path], Path], str]] = {
    "llama Q4_1": (_gguf(tiny.llama, "Q4_1"), "auto"),
    "llama Q8_0": (_gguf(partial(tiny.llama, head_dim=32), "Q8_0"), "auto"),
    "llama float32": (lambda folder: tiny.write_hf(tiny.llama(), folder), "float32"),
    "mixtral Q8_0": (_gguf(tiny.mixtral, "Q8_0"), "auto"),
    "gemma3 bfloat16": (lambda folder: tiny.write_hf(tiny.gemma3(), folder), "bfloat16"),
}


def digests(level: str) -> dict[str, str]:
    """Of the logits after each of ``TOKENS``, by model."""
    found = {}
    for name, (write, dtype) in MODELS.items():
        with TemporaryDirectory() as folder:
            model = load(write(Path(folder)), dtype)
            logits = native_logits(model, TOKENS, level, threads=1)
        found[name] = blake2b(logits.tobytes(), digest_size=16).hexdigest()
    return found


if __name__ == "__main__":
    known = {"arithmetic": ARITHMETIC, "logits": digests("scalar")}
    FILE.write_text(json.dumps(known, indent=2) + "\n")
    print(f"wrote {FILE}")
