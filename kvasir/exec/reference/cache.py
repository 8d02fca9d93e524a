"""KV cache in blocks, in NumPy, and the rows of a step laid out over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir.core.groups import NO_BLOCK, KVGroup, Tables, group_of, state_group
from kvasir.core.plan import Copy, Move, Row
from kvasir.exec.reference.kvtypes import round_kv
from kvasir.exec.rows import depths
from kvasir.exec.taken import StateStep
from kvasir.ir.ops import KvView
from kvasir.ir.program import FloatArray, KVSpec

Indices = NDArray[np.int64]


class BlockCache:
    """K and V of every layer, f32 [n_blocks * block_size, n_kv_heads, head_dim] with the blocks of
    the layer's group; of a layer with a state, f32 [n_blocks, numbers].

    Entries are rounded as the layer's spec says.
    """

    def __init__(
        self,
        specs: tuple[KVSpec, ...],
        groups: Sequence[KVGroup],
        block_size: int,
        n_moved: int | None = None,
    ) -> None:
        """``n_moved``: of the first specs, whose entries move; None: of all."""
        self._moved = [spec.layer for spec in specs[:n_moved] if not spec.state_size]
        self.block_size = block_size
        states = [spec for spec in specs if spec.state_size]
        specs = tuple(spec for spec in specs if not spec.state_size)
        self._specs = {spec.layer: spec for spec in specs}
        self._group = {spec.layer: group_of(spec.window, groups) for spec in specs}
        self._state_group = state_group(groups) if states else -1
        self._states = {
            spec.layer: np.zeros((groups[self._state_group].n_blocks, spec.state_size), np.float32)
            for spec in states
        }
        shapes = {
            spec.layer: (
                groups[self._group[spec.layer]].n_blocks * block_size,
                spec.n_kv_heads,
                spec.head_dim,
            )
            for spec in specs
        }
        self.kept: dict[tuple[int, int], dict[int, FloatArray]] = {}
        """By layer and slot the state after each drafted token of the slot's last row."""
        self._k = {layer: np.zeros(shape, np.float32) for layer, shape in shapes.items()}
        self._v = {layer: self._values(layer, shape) for layer, shape in shapes.items()}

    def _values(self, layer: int, shape: tuple[int, ...]) -> FloatArray:
        """Latents are a part of their keys."""
        latent = self._specs[layer].latent
        return self._k[layer][..., :latent] if latent else np.zeros(shape, np.float32)

    def table(self, layer: int, tables: Tables) -> tuple[int, ...]:
        """The one of ``tables`` that finds the entries of ``layer``."""
        return tables[self._group[layer]]

    def state(self, layer: int, tables: Tables, position: int) -> FloatArray:
        """The state in the block of ``position``, as the token before left it: zeros before the
        first token, a copy of the block before at the begin of another."""
        states, blocks = self._states[layer], tables[self._state_group]
        index, inside = divmod(position, self.block_size)
        state: FloatArray = states[blocks[index]]
        if not position:
            state[:] = 0.0
        elif not inside:
            state[:] = states[blocks[index - 1]]
        return state

    def state_after(self, layer: int, tables: Tables, position: int) -> FloatArray:
        """What ``put_state`` put there."""
        state: FloatArray = self._states[layer][
            tables[self._state_group][position // self.block_size]
        ]
        return state

    def put_state(self, layer: int, tables: Tables, position: int, state: FloatArray) -> None:
        """The state after the token at ``position``."""
        blocks = tables[self._state_group]
        self._states[layer][blocks[position // self.block_size]] = state

    def slots(self, blocks: tuple[int, ...], indices: Indices) -> Indices:
        """Physical places of storage indices of a sequence."""
        return (
            np.asarray(blocks, np.int64)[indices // self.block_size] * self.block_size
            + indices % self.block_size
        )

    def write(self, layer: int, slots: Indices, k: FloatArray, v: FloatArray) -> None:
        dtype = self._specs[layer].dtype
        self._k[layer][slots] = round_kv(k, dtype)
        if not self._specs[layer].latent:
            self._v[layer][slots] = round_kv(v, dtype)

    def rounds(self, layer: int) -> bool:
        """Whether the layer's entries are smaller than f32."""
        return self._specs[layer].dtype != "f32"

    def read(self, layer: int, slots: Indices) -> tuple[FloatArray, FloatArray]:
        return self._k[layer][slots], self._v[layer][slots]

    def move(self, move: Move, tables: Tables) -> None:
        """Copies one entry in the target's layers, by the tables of its slot."""
        for layer in self._moved:
            blocks = self.table(layer, tables)
            src, dst = self.slots(blocks, np.array([move.src, move.dst]))
            self._k[layer][dst] = self._k[layer][src]
            self._v[layer][dst] = self._v[layer][src]

    def copy(self, copy: Copy) -> None:
        """Copies the first entries of a block in all layers."""
        rows = np.arange(copy.n_entries)
        for layer, group in self._group.items():
            src = copy.src[group] * self.block_size + rows
            dst = copy.dst[group] * self.block_size + rows
            self._k[layer][dst] = self._k[layer][src]
            self._v[layer][dst] = self._v[layer][src]

    def read_block(self, group: int, block: int) -> bytes:
        """Layer after layer of a group: K, then V unless it is a part of K; or the state."""
        return b"".join(part.tobytes() for part in self._parts(group, block))

    def write_block(self, group: int, block: int, data: bytes) -> None:
        values = np.frombuffer(data, np.float32)
        for part in self._parts(group, block):
            part[:] = values[: part.size].reshape(part.shape)
            values = values[part.size :]

    def _parts(self, group: int, block: int) -> list[FloatArray]:
        """Views of a block, in each layer of its group."""
        if group == self._state_group:
            return [states[block] for states in self._states.values()]
        rows = slice(block * self.block_size, (block + 1) * self.block_size)
        layers = [layer for layer, of in self._group.items() if of == group]
        return [
            kv[layer][rows]
            for layer in layers
            for kv in ((self._k,) if self._specs[layer].latent else (self._k, self._v))
        ]


class RowLayout(msgspec.Struct, frozen=True):
    """A row of the plan, the tables of its slot, and the index of its first token in the step."""

    row: Row
    tables: Tables
    first: int
    taken: StateStep

    def ancestors(self, token: int) -> list[int]:
        """Tokens of the row on the way to ``token``, itself included, oldest first."""
        if not self.row.parents:
            return list(range(token + 1))
        path: list[int] = []
        while token >= 0:
            path.append(token)
            token = self.row.parents[token]
        return path[::-1]


class StepLayout:
    """All rows of a step; tokens are numbered through in the order of the plan."""

    def __init__(
        self,
        rows: tuple[Row, ...],
        tables: Mapping[int, Tables],
        cache: BlockCache,
        taken: Sequence[StateStep],
    ) -> None:
        """``tables``: by slot, of each row as far as its tokens. ``taken``: of each row."""
        self._cache = cache
        firsts = np.cumsum([0, *(len(row.tokens) for row in rows)])
        self.rows = [
            RowLayout(row, tables[row.slot], int(first), one)
            for row, first, one in zip(rows, firsts, taken, strict=False)
        ]
        self._owner = [layout for layout in self.rows for _ in layout.row.tokens]

    def positions(self) -> NDArray[np.int32]:
        """Logical position of every token of the step."""
        found = [layout.row.start + depth for layout in self.rows for depth in depths(layout.row)]
        return np.array(found, np.int32)

    def logit_rows(self) -> NDArray[np.int32]:
        """Tokens of the step that yield logits."""
        found: list[int] = []
        for layout in self.rows:
            end = layout.first + len(layout.row.tokens)
            found.extend(range(end - layout.row.n_logits, end))
        return np.array(found, np.int32)

    def store_slots(self, layer: int) -> Indices:
        """Physical place of every token of the step."""
        parts = [
            self._cache.slots(
                self._cache.table(layer, layout.tables),
                layout.row.start + np.arange(len(layout.row.tokens)),
            )
            for layout in self.rows
        ]
        return np.concatenate(parts)

    def ends(self) -> NDArray[np.int32]:
        """Where the row of every token of the step ends."""
        found = [layout.row.end for layout in self.rows for _ in layout.row.tokens]
        return np.array(found, np.int32)

    def state(self, layer: int, token: int) -> FloatArray:
        """Of the sequence of ``token``, in its block, or for a drafted one beside it. Tokens ask
        one after the other."""
        layout, cache = self._owner[token], self._cache
        row, taken, i = layout.row, layout.taken, token - layout.first
        kept = cache.kept.setdefault((layer, row.slot), {})
        if not i:
            for at, node in enumerate(taken.path, taken.at):
                cache.put_state(layer, layout.tables, at, kept[node])
            kept.clear()
        if i < taken.n_certain:
            return cache.state(layer, layout.tables, row.start + i)
        parent = row.parents[i] if row.parents else i - 1
        if parent not in kept:
            kept[parent] = cache.state_after(layer, layout.tables, row.start)
        kept[i] = kept[parent].copy()
        return kept[i]

    def view(self, layer: int, token: int, end: int = 0) -> KvView:
        """The past of the token's sequence as far as the layer keeps it, the token's ancestors and
        itself, by logical position; or all that is kept before ``end``."""
        layout = self._owner[token]
        start = layout.row.start
        path = start + np.array(layout.ancestors(token - layout.first), np.int64)
        blocks = self._cache.table(layer, layout.tables)
        first = min(start, blocks.count(NO_BLOCK) * self._cache.block_size)
        indices = np.concatenate([np.arange(first, start, dtype=np.int64), path])
        if end:
            indices = np.arange(first, end, dtype=np.int64)
        k, v = self._cache.read(layer, self._cache.slots(blocks, indices))
        positions = first + np.arange(len(indices), dtype=np.int64)
        return KvView(positions, k, v, self._cache.rounds(layer))
