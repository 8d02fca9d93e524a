"""One sequence in paged KV memory (NaN where nothing was written); its attention in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvasir import _native

Floats = NDArray[np.float32]


def to_bf16(x: Floats) -> NDArray[np.uint16]:
    """Nearest even; finite values only."""
    u = x.view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(h: NDArray[np.uint16]) -> Floats:
    return (h.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Shape:
    head_dim: int = 64
    group: int = 3
    n_kv_heads: int = 2
    bf16: bool = True
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0

    @property
    def n_heads(self) -> int:
        return self.group * self.n_kv_heads

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))


class Pages:
    """KV pages behind a block table; ``memory`` starts as NaN with all payload bits set."""

    def __init__(self, shape: Shape, capacity: int, order: NDArray[np.int32]) -> None:
        self.shape = shape
        n_blocks = -(-capacity // shape.block_size)
        self.table = order[:n_blocks].astype(np.int32)
        self.n_pages = int(order.max()) + 1
        page = (self.n_pages, 2, shape.n_kv_heads, shape.block_size * shape.head_dim)
        self.memory = np.full(
            page, 0x7FFF if shape.bf16 else 0x7FFFFFFF, np.uint16 if shape.bf16 else np.uint32
        )

    def write(self, index: int, k: Floats, v: Floats) -> None:
        """k, v: [n_kv_heads, head_dim] at storage index ``index``."""
        s = self.shape
        page, offset = self.table[index // s.block_size], index % s.block_size
        bits = to_bf16 if s.bf16 else (lambda x: x.view(np.uint32))
        ks = self.memory[page, 0].reshape(s.n_kv_heads, s.block_size // 16, s.head_dim, 16)
        vs = self.memory[page, 1].reshape(s.n_kv_heads, s.block_size, s.head_dim)
        ks[:, offset // 16, :, offset % 16] = bits(np.ascontiguousarray(k))
        vs[:, offset] = bits(np.ascontiguousarray(v))

    def native(self) -> _native.KvPages:
        s = self.shape
        flat = self.memory.reshape(-1).view(np.uint8)
        return _native.KvPages(flat, self.n_pages, s.block_size, s.n_kv_heads, s.head_dim, s.bf16)


@dataclass(frozen=True)
class Sequence:
    """``q`` [n, n_heads * head_dim]; ``k``, ``v`` [n, n_kv_heads, head_dim]; row = position."""

    shape: Shape
    q: Floats
    k: Floats
    v: Floats

    @property
    def length(self) -> int:
        return len(self.q)

    def pages(self, written: int, order: NDArray[np.int32] | None = None) -> Pages:
        """Pages that hold positions [0, written); the rest is NaN."""
        n_blocks = -(-self.length // self.shape.block_size)
        pages = Pages(
            self.shape, self.length, np.arange(n_blocks, dtype=np.int32) if order is None else order
        )
        for p in range(written):
            pages.write(p, self.k[p], self.v[p])
        return pages


def random_sequence(shape: Shape, length: int, seed: int) -> Sequence:
    rng = np.random.default_rng(seed)
    normal = lambda *dims: rng.standard_normal(dims, dtype=np.float32)  # noqa: E731
    kv = (length, shape.n_kv_heads, shape.head_dim)
    return Sequence(
        shape, normal(length, shape.n_heads * shape.head_dim) * 2, normal(*kv), normal(*kv)
    )


def chain_step(pages: Pages, start: int, stop: int) -> _native.StepRows:
    pos = np.arange(start, stop, dtype=np.int32)
    n = stop - start
    return tree_step(pages, start, pos, np.full(n, -1, np.int32), is_tree=False)


def tree_step(
    pages: Pages,
    start: int,
    pos: NDArray[np.int32],
    parent: NDArray[np.int32],
    is_tree: bool = True,
) -> _native.StepRows:
    n = len(pos)
    return _native.StepRows(
        np.zeros(n, np.int32),
        pos,
        np.arange(start, start + n, dtype=np.int32),
        parent,
        np.array([0, n], np.int32),
        np.array([start], np.int32),
        np.array([is_tree], np.uint8),
        pages.table[None].copy(),
    )


def attend(
    level: str, shape: Shape, pages: Pages, step: _native.StepRows, q: Floats, cuts: list[int]
) -> Floats:
    """Output [tokens, n_heads * head_dim] of a step of one sequence whose items end at ``cuts``."""
    kernels, kv = _native.Kernels(level), pages.native()
    q = np.ascontiguousarray(q)
    out = np.full_like(q, np.nan)
    bounds = [0, *cuts, len(q)]
    for a, b in pairwise(bounds):
        for head in range(shape.n_kv_heads):
            kernels.attention(
                q, out, shape.scale, shape.softcap, shape.window, kv, step, 0, a, b, head
            )
    return out


def whole(
    level: str, seq: Sequence, start: int, stop: int, cuts: list[int] | None = None
) -> Floats:
    """Tokens [start, stop) in one step; nothing after them is written."""
    pages = seq.pages(stop)
    return attend(
        level, seq.shape, pages, chain_step(pages, start, stop), seq.q[start:stop], cuts or []
    )


def expected(seq: Sequence, start: int, stop: int) -> NDArray[np.float64]:
    """The definition, in float64 over the rounded KV."""
    s = seq.shape
    k, v = (from_bf16(to_bf16(x)) if s.bf16 else x for x in (seq.k, seq.v))
    out = np.empty((stop - start, s.n_heads, s.head_dim))
    for t in range(start, stop):
        low = max(0, t - s.window + 1) if s.window else 0
        for h in range(s.n_heads):
            q = seq.q[t].reshape(s.n_heads, s.head_dim)[h].astype(np.float64)
            keys, values = k[low : t + 1, h // s.group], v[low : t + 1, h // s.group]
            score = keys.astype(np.float64) @ q * s.scale
            if s.softcap:
                score = s.softcap * np.tanh(score / s.softcap)
            p = np.exp(score - score.max())
            out[t - start, h] = p @ values / p.sum()
    return out.reshape(stop - start, -1)
