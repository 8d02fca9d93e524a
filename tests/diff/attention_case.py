"""One sequence in paged KV memory (NaN where nothing was written); its attention in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu.codes import KV_TYPE_CODES
from kvasir.exec.reference.kvtypes import round_kv
from kvasir.models.alibi import alibi_slopes
from tests import kv_codes

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    head_dim: int = 64
    group: int = 3
    n_kv_heads: int = 2
    dtype: str = "bf16"
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    chunked: bool = False
    alibi: bool = False

    @property
    def n_heads(self) -> int:
        return self.group * self.n_kv_heads

    @property
    def sinks(self) -> Floats | None:
        """Around the scores that the random sequences give, some above all of them."""
        return np.linspace(-2, 9, self.n_heads).astype(np.float32) if self.has_sinks else None

    @property
    def slopes(self) -> Floats | None:
        return alibi_slopes(self.n_heads) if self.alibi else None

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))


class Pages:
    """KV pages behind a block table. ``memory`` [pages, bytes] starts with all bits set, which is
    NaN in all types but int8, and in its scales."""

    def __init__(self, shape: Shape, capacity: int, order: NDArray[np.int32]) -> None:
        self.shape = shape
        n_blocks = -(-capacity // shape.block_size)
        self.table = order[:n_blocks].astype(np.int32)
        self.n_pages = int(order.max()) + 1
        vectors = shape.n_kv_heads * shape.block_size
        self._items = vectors * shape.head_dim * kv_codes.ITEM[shape.dtype].itemsize
        scales = vectors * 2 if shape.dtype in kv_codes.SCALED else 0
        self.memory = np.full((self.n_pages, 2 * (self._items + scales)), 0xFF, np.uint8)

    def write(self, first: int, k: Floats, v: Floats) -> None:
        """k, v: [n, n_kv_heads, head_dim] at the storage indices from ``first``."""
        keys, k_scales = kv_codes.encode(k, self.shape.dtype)
        values, v_scales = kv_codes.encode(v, self.shape.dtype)
        for i in range(len(k)):
            self._put(first + i, keys[i], values[i])
            if k_scales is not None and v_scales is not None:
                page, offset = divmod(first + i, self.shape.block_size)
                self.views(self.table[page])[2][:, :, offset] = k_scales[i], v_scales[i]

    def _put(self, index: int, k: NDArray[Any], v: NDArray[Any]) -> None:
        s = self.shape
        page, offset = self.table[index // s.block_size], index % s.block_size
        keys, values, _ = self.views(page)
        keys[:, offset // 16, :, offset % 16] = k
        values[:, offset] = v

    def views(self, page: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint16]]:
        """K [heads, block/16, head_dim, 16], V [heads, block, head_dim], scales [2, heads,
        block]."""
        s, n = self.shape, self._items
        memory, item = self.memory[page], kv_codes.ITEM[s.dtype]
        keys = memory[:n].view(item).reshape(s.n_kv_heads, s.block_size // 16, s.head_dim, 16)
        values = memory[n : 2 * n].view(item).reshape(s.n_kv_heads, s.block_size, s.head_dim)
        shape = (2, s.n_kv_heads, s.block_size) if s.dtype in kv_codes.SCALED else (2, 0, 0)
        return keys, values, memory[2 * n :].view(np.uint16).reshape(shape)

    def values(self) -> Floats:
        """What all entries mean [pages, 2, heads, block, head_dim]."""
        s = self.shape
        out = np.empty((self.n_pages, 2, s.n_kv_heads, s.block_size, s.head_dim), np.float32)
        for page in range(self.n_pages):
            keys, values, scales = self.views(page)
            by_token = keys.transpose(0, 1, 3, 2).reshape(values.shape)
            for half, codes in enumerate((by_token, values)):
                scale = scales[half] if scales.size else None
                out[page, half] = kv_codes.decode(codes, scale, s.dtype)
        return out

    def native(self) -> _native.KvBlocks:
        s = self.shape
        sizes = (self.n_pages, s.block_size, s.n_kv_heads, s.head_dim)
        return _native.KvBlocks(self.memory.reshape(-1), *sizes, KV_TYPE_CODES[s.dtype])


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
        pages.write(0, self.k[:written], self.v[:written])
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
    level: str,
    shape: Shape,
    pages: Pages,
    step: _native.StepRows,
    q: Floats,
    cuts: list[int],
    split: bool = False,
    ends: NDArray[np.int32] | None = None,
) -> Floats:
    """Output [tokens, n_heads * head_dim] of a step of one sequence whose items end at ``cuts``;
    ``split``: and at the segments of the context. ``ends`` [tokens]:
    where what a token sees ends."""
    kernels, kv = _native.Kernels(level), pages.native()
    q = np.ascontiguousarray(q)
    out = np.full_like(q, np.nan)
    bounds, rule = [0, *cuts, len(q)], (shape.scale, shape.softcap, shape.window)
    for a, b in pairwise(bounds):
        for head in range(shape.n_kv_heads):
            item = (0, a, b, head, shape.sinks, split, ends, shape.chunked, None, 0, shape.slopes)
            kernels.attention(q, out, *rule, kv, step, *item)
    return out


def whole(
    level: str,
    seq: Sequence,
    start: int,
    stop: int,
    cuts: list[int] | None = None,
    split: bool = False,
    ends: NDArray[np.int32] | None = None,
) -> Floats:
    """Tokens [start, stop) in one step; nothing after them is written."""
    pages = seq.pages(stop)
    step, q = chain_step(pages, start, stop), seq.q[start:stop]
    return attend(level, seq.shape, pages, step, q, cuts or [], split, ends)


def expected(
    seq: Sequence, start: int, stop: int, ends: NDArray[np.int32] | None = None
) -> NDArray[np.float64]:
    """The definition, in float64 over the rounded KV and queries; probabilities are not rounded."""
    s = seq.shape
    queries = seq.q if s.dtype == "f32" else round_kv(seq.q, "bf16")
    k, v = (round_kv(x, s.dtype) for x in (seq.k, seq.v))
    out = np.empty((stop - start, s.n_heads, s.head_dim))
    for t in range(start, stop):
        low = max(0, t - s.window + 1) if s.window else 0
        low = t - t % s.window if s.chunked else low
        for h in range(s.n_heads):
            q = queries[t].reshape(s.n_heads, s.head_dim)[h].astype(np.float64)
            end = t + 1 if ends is None else min(ends[t - start], t + (s.window or stop))
            keys, values = k[low:end, h // s.group], v[low:end, h // s.group]
            score = keys.astype(np.float64) @ q * s.scale
            if s.softcap:
                score = s.softcap * np.tanh(score / s.softcap)
            if s.slopes is not None:
                score = score - float(s.slopes[h]) * np.abs(np.arange(low, end) - t)
            sink = -np.inf if s.sinks is None else float(s.sinks[h])
            top = max(score.max(), sink)
            p = np.exp(score - top)
            out[t - start, h] = p @ values / (p.sum() + np.exp(sink - top))
    return out.reshape(stop - start, -1)
