"""The smallest backend: a folder's worth of NumPy behind the same door as the others.

It computes when it is asked for a result, as something elsewhere would, has the thread, the blocks
and the arrays of a step to itself, and takes from the project the order of a step, its arrays and
the arithmetic of its ops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.config.hardware import Hardware, probe
from kvasir.config.resolved import EngineConfig
from kvasir.core.drawn import Drawn
from kvasir.core.groups import NO_BLOCK, group_of
from kvasir.core.plan import Copy, Move, RowOutput, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.backend import ProgramBackend, Wishes
from kvasir.exec.base import BlockStore, Fills
from kvasir.exec.checks import need
from kvasir.exec.cpu.passes import lower_passes
from kvasir.exec.inputs import StepArrays
from kvasir.exec.order import before_rows
from kvasir.exec.reference import interpret, load_weights
from kvasir.exec.reference.kvtypes import round_kv
from kvasir.exec.tables import SlotTables
from kvasir.ir.bundle import Bundle
from kvasir.ir.ops import KvView
from kvasir.ir.program import FloatArray, Program
from kvasir.sampling.masks import Bits
from kvasir.sampling.reference import SlotState, sample_row
from kvasir.weights.bind import Binding


class ToyHandle:
    def __init__(self, executor: ToyExecutor) -> None:
        self._executor = executor
        self.fills: Fills | None = None
        self.masks: dict[int, Bits] = {}
        self.done: StepResult | None = None

    def fill(self, row: int, bits: Bits) -> None:
        self.masks[row] = bits.copy()

    @property
    def is_done(self) -> bool:
        return self.done is not None

    def result(self) -> StepResult:
        while self.done is None:
            self._executor.run_next()
        return self.done


class ToyExecutor:
    """An ``Executor``, the ``Entries`` of its order and the ``Env`` of its ops. K and V of a layer:
    f32 [blocks of its group, block size, 2, KV heads, head size]."""

    def __init__(
        self, program: Program, weights: Mapping[str, FloatArray], sizes: EngineSizes
    ) -> None:
        self.sizes = sizes
        self.constants = program.constants
        self._program = program
        self._weights = weights
        self._queue: deque[tuple[StepPlan, ToyHandle]] = deque()
        self._store: BlockStore | None = None
        self._tables = SlotTables(sizes)
        self._arrays = StepArrays(sizes)
        self._states: dict[int, SlotState] = {}
        self._drawn = Drawn()
        self._specs = {spec.layer: spec for spec in program.kv}
        self._group = {spec.layer: group_of(spec.window, sizes.groups) for spec in program.kv}
        self._kv = {
            x.layer: np.zeros(
                (
                    sizes.groups[self._group[x.layer]].n_blocks,
                    sizes.block_size,
                    2,
                    x.n_kv_heads,
                    x.head_dim,
                ),
                np.float32,
            )
            for x in program.kv
        }
        self._outputs: tuple[RowOutput, ...] = ()
        self._masks: dict[int, Bits] = {}

    def attach(self, store: BlockStore) -> None:
        self._store = store

    def start(self, plan: StepPlan) -> ToyHandle:
        handle = ToyHandle(self)
        self._queue.append((plan, handle))
        return handle

    def close(self) -> None:
        while self._queue:
            self.run_next()

    def run_next(self) -> None:
        """The oldest step that was started."""
        plan, handle = self._queue.popleft()
        self._masks = handle.masks
        need(not any(row.n_drafts for row in plan.rows), "there is no draft program")
        self._tables.apply(plan)
        for x in plan.opens:
            self._states[x.slot] = SlotState(x.params, x.prompt, x.output)
        for slot, token in plan.commits:
            self._states[slot].commit(token)
        before_rows(plan, self, self._store)
        self._arrays.write(plan, self._tables)
        inputs = {
            "tokens": self._resolved("tokens", plan.n_tokens),
            "positions": self._ints("pos", plan.n_tokens),
            "logit_rows": self._ints("logit_token", plan.n_logits),
        }
        interpret(self._program, inputs, self._weights, self)
        self._drawn = Drawn.by(plan, self._outputs)
        handle.done = StepResult(self._outputs)

    def read_block(self, group: int, block: int) -> bytes:
        return b"".join(kv[block].tobytes() for kv in self._layers(group))

    def write_block(self, group: int, block: int, data: bytes) -> None:
        values = np.frombuffer(data, np.float32)
        for kv in self._layers(group):
            kv[block] = values[: kv[block].size].reshape(kv[block].shape)
            values = values[kv[block].size :]

    def move(self, move: Move) -> None:
        for layer, kv in self._kv.items():
            group = self._group[layer]
            src, dst = (self._tables.place(group, move.slot, i) for i in (move.src, move.dst))
            kv[dst] = kv[src]

    def copy(self, copy: Copy) -> None:
        for layer, kv in self._kv.items():
            src, dst = (blocks[self._group[layer]] for blocks in (copy.src, copy.dst))
            kv[dst, : copy.n_entries] = kv[src, : copy.n_entries]

    def write_kv(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        dtype = self._specs[layer].dtype
        for token, pair in enumerate(zip(round_kv(k, dtype), round_kv(v, dtype), strict=True)):
            self._kv[layer][self._place(layer, token, self._int("store", token))] = pair

    def view(self, layer: int, token: int, end: int = 0) -> KvView:
        path = []
        seq, node = self._int("seq", token), token
        start, first = self._int("seq_start", seq), self._int("seq_begin", seq)
        is_tree = self._int("seq_tree", seq)
        while node >= first:
            path.append(self._int("store", node))
            node = self._int("parent", node) if is_tree else node - 1
        n_gone = self._arrays.arrays["tables"][self._group[layer], seq].tolist()
        n_gone = n_gone[: -(-(start + 1) // self.sizes.block_size)].count(NO_BLOCK)
        oldest = min(start, n_gone * self.sizes.block_size)
        indices = [*range(oldest, end)] if end else [*range(oldest, start), *reversed(path)]
        pairs = np.array([self._kv[layer][self._place(layer, token, i)] for i in indices])
        positions = oldest + np.arange(len(indices))
        return KvView(positions, pairs[:, 0], pairs[:, 1], self._specs[layer].dtype != "f32")

    def sample(self, logits: FloatArray) -> NDArray[np.int32]:
        paths = self._ints("path_begin", len(logits) + 1)
        path = self._resolved("path", int(paths[-1]))
        self._outputs = tuple(
            sample_row(
                row,
                self._states[self._int("logit_slot", i)],
                self._int("logit_out_index", i),
                path[paths[i] : paths[i + 1]].tolist(),
                self._int("logit_target", i),
                self._masks.get(i),
            )
            for i, row in enumerate(logits)
        )
        return np.array([output.token for output in self._outputs], np.int32)

    def _layers(self, group: int) -> Sequence[FloatArray]:
        return [kv for layer, kv in self._kv.items() if self._group[layer] == group]

    def _place(self, layer: int, token: int, index: int) -> tuple[int, int]:
        block, entry = divmod(index, self.sizes.block_size)
        table = self._arrays.arrays["tables"][self._group[layer], self._int("seq", token)]
        return int(table[block]), entry

    def _int(self, name: str, i: int) -> int:
        return int(self._arrays.arrays[name][i])

    def _ints(self, name: str, n: int) -> NDArray[np.int32]:
        return np.array(self._arrays.arrays[name][:n], np.int32)

    def _resolved(self, name: str, n: int) -> NDArray[np.int32]:
        return np.array(self._drawn.ids(self._ints(name, n).tolist()), np.int32)


def _make(bundle: Bundle, binding: Binding, config: EngineConfig, wishes: Wishes) -> ToyExecutor:
    return ToyExecutor(bundle.target, load_weights(bundle.target, binding), config.sizes)


def _hardware() -> Hardware:
    return probe(())


TOY = ProgramBackend("toy", _hardware, lower_passes, lambda program, binding: "", _make)
