"""Digests of what the native executor computes and draws, and of how it packs weights.

``python -m tests.golden.bits`` writes them anew: logits and linears for a new
``kvasir.exec.backend.ARITHMETIC`` alone, draws for a new ``kvasir.core.params.DRAWS`` alone,
packed weights for a new ``kLayoutVersion`` alone. Caches and logs of requests outlive an upgrade
and must not meet an engine that computes something else, nor kept weights one that reads them
otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.core.params import DRAWS, TokenParams
from kvasir.exec.backend import ARITHMETIC
from kvasir.exec.cpu.codes import LAYOUT_CODES
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.formats.types import FORMATS
from tests import tiny
from tests.diff.kernel_case import FORMAT_OF, pack_format
from tests.diff.linear_case import NONE, SILU, Activations
from tests.format_blocks import random_blocks
from tests.loading import load, sizes_for, whole_prompt
from tests.native import plan_logits

FILE = Path(__file__).with_name("bits.json")
N, K = 40, 512
"""Of the weights of each layout: more than two column tiles, two blocks of 256."""


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt of ``n_tokens`` in one step, with logits for the last ``n_logits``."""

    write: Callable[[Path], Path]
    dtype: str = "auto"
    kv_dtype: str | None = None
    n_tokens: int = 100
    n_logits: int = 100

    def logits(self, folder: Path, level: str) -> NDArray[np.float32]:
        model = load(self.write(folder), self.dtype, self.n_tokens, self.kv_dtype)
        sizes = sizes_for(model.config, 1, -(-self.n_tokens // 16) * 16)
        tokens = tuple(7 * i % 90 + 3 for i in range(self.n_tokens))
        executor = CpuExecutor(model.program, model.binding, sizes, CpuSettings(1, level))
        return plan_logits(executor, whole_prompt(tokens, self.n_logits))


def _gguf(config: Callable[[], tiny.TinyModel], format: str) -> Callable[[Path], Path]:
    return lambda folder: tiny.write_gguf_model(config(), folder / "m.gguf", format)


def _hf(config: Callable[[], tiny.TinyModel]) -> Callable[[Path], Path]:
    return lambda folder: tiny.write_hf(config(), folder)


_WIDE = _gguf(partial(tiny.llama, head_dim=32), "Q8_0")
_LONG = partial(tiny.llama, num_hidden_layers=1, max_position_embeddings=2048)
CASES: Mapping[str, Case] = {
    "llama Q4_1": Case(_gguf(tiny.llama, "Q4_1")),
    "llama Q8_0": Case(_WIDE),
    "llama Q8_0, KV int8": Case(_WIDE, kv_dtype="int8"),
    "llama Q8_0, KV fp8_e4m3": Case(_WIDE, kv_dtype="fp8_e4m3"),
    "llama Q8_0, KV fp8_e5m2": Case(_WIDE, kv_dtype="fp8_e5m2"),
    "llama float32": Case(_hf(tiny.llama), "float32"),
    "llama bfloat16, two segments": Case(_hf(_LONG), "bfloat16", n_tokens=1100, n_logits=1),
    "mixtral Q8_0": Case(_gguf(tiny.mixtral, "Q8_0")),
    "gemma3 bfloat16": Case(_hf(tiny.gemma3), "bfloat16"),
}


def logits(level: str) -> dict[str, str]:
    """By model."""
    found = {}
    for name, case in CASES.items():
        with TemporaryDirectory() as folder:
            found[name] = _digest(case.logits(Path(folder), level))
    return found


def linears(level: str) -> dict[str, str]:
    """Of one row and of many, by layout."""
    kernels = _native.Kernels(level)
    found = {}
    for name in LAYOUTS:
        outs, w = [], _tiles(name)
        for M in (1, 37):
            x = Activations(name, tiny.uniform(f"rows {M}", (M, K), 1.0), 64)
            out = np.zeros((M, N), np.float32)
            tiles = (0, -(-N // 16))
            kernels.linear(
                LAYOUT_CODES[name], w, N, x.rows, out, *tiles, 0, M, NONE, SILU, None, None, None
            )
            outs.append(out)
        found[name] = _digest(*outs)
    return found


def draws() -> str:
    """Of every pair of filters at three temperatures, with penalties, bias and bans."""
    vocab, found = 1000, []
    logits = tiny.uniform("draws", (vocab,), 6.0)
    sampler = _native.Sampler(1, vocab)
    filters = product((0.3, 1.0, 1.7), (0, 40), (1.0, 0.7), (0.0, 0.1), (1.0, 1.3))
    for seed, (temperature, top_k, top_p, min_p, repetition) in enumerate(filters):
        params = TokenParams(
            seed=seed,
            max_tokens=64,
            min_tokens=32,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition,
            presence_penalty=0.5,
            frequency_penalty=0.25,
            logit_bias=((7, 5.0), (8, -5.0)),
            stop_ids=(7, 9),
        )
        sampler.open(0, params, (1, 2, 3), (3, 4))
        found += [sampler.sample(0, logits.copy(), i, [5], -1)[0] for i in range(64)]
    assert len(set(found)) > 100
    return _digest(np.array(found))


def packed() -> dict[str, str]:
    """By layout."""
    return {name: _digest(_tiles(name)) for name in LAYOUTS}


def _tiles(layout: str) -> NDArray[np.uint8]:
    """Column tiles of fixed weights."""
    form = FORMAT_OF[layout]
    block = FORMATS[form].block
    rows = random_blocks(form, N * K // (256 if block == 1 else block))
    return pack_format(layout, form, [rows], N, K)


def _digest(*arrays: NDArray[np.generic]) -> str:
    digest = blake2b(digest_size=16)
    for array in arrays:
        assert np.isfinite(array).all()
        digest.update(array.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    known = {
        "arithmetic": ARITHMETIC,
        "logits": logits("scalar"),
        "linears": linears("scalar"),
        "sampler": DRAWS,
        "draws": draws(),
        "layout": _native.LAYOUT_VERSION,
        "packed": packed(),
    }
    FILE.write_text(json.dumps(known, indent=2) + "\n")
    print(f"wrote {FILE}")
