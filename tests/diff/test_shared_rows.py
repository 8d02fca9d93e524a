"""Rows whose tables begin with the same blocks: computed together they have the bits that each has
alone over a copy of its own, in the kernels and in a program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as with_fields
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from kvasir import _native
from kvasir.core.plan import SlotOpen
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from tests import tiny, tiny_latent
from tests.diff.attention_case import Floats, Pages, Sequence, Shape, random_sequence, whole
from tests.diff.test_attention import LEVELS, SHAPES
from tests.forms import n_of
from tests.loading import BLOCK, GREEDY, Loaded, load, sizes_for
from tests.native import BEST, plan_logits
from tests.planned import Placed, placed, step_plan

CASES = {
    "two": (64, (1, 30)),
    "less than a tile": (48, (1, 70)),
    "no whole tile more": (112, (16, 17, 80)),
    "the same lengths": (128, (5,) * 7),
    "over a segment": (1008, (3, 16, 40, 200)),
    "segments": (1100, (4, 60)),
}
"""Positions in common, and what each row has behind them."""
OF_ALL = (
    *("plain", "f32", "int8", "e4m3", "e5m2", "hd32", "window", "chunks", "sinks", "f32-all"),
    "alibi",
)
OF_SOME = ("two", "no whole tile more", "over a segment")


def branches(shape: Shape, shared: int, tails: tuple[int, ...]) -> list[Sequence]:
    """As long as what is shared and a tail each."""
    trunk = random_sequence(shape, shared, 1)
    found = []
    for i, n in enumerate(tails):
        tail = random_sequence(shape, n, 2 + i)
        pairs = (trunk.q, tail.q), (trunk.k, tail.k), (trunk.v, tail.v)
        found.append(Sequence(shape, *(np.concatenate(pair) for pair in pairs)))
    return found


def on_shared_pages(rows: list[Sequence], shared: int) -> tuple[Pages, _native.StepRows]:
    """Whole pages of what is in common are the first row's; the newest token of each is a row."""
    size = rows[0].shape.block_size
    n_pages = [-(-row.length // size) for row in rows]
    n_shared, n_all = shared // size, sum(n_pages)
    order = np.random.default_rng(4).permutation(n_all).astype(np.int32)
    tables = np.full((len(rows), max(n_pages)), -1, np.int32)
    memory: Pages | None = None
    for i, row in enumerate(rows):
        first = sum(n_pages[:i])
        own = np.concatenate([order[first : first + n_pages[i]], order])
        own[:n_shared] = order[:n_shared]
        pages = row.pages(row.length, own)
        memory = memory or pages
        memory.memory[pages.table] = pages.memory[pages.table]
        tables[i, : n_pages[i]] = pages.table
    assert memory is not None
    n = np.arange(len(rows) + 1, dtype=np.int32)
    last = np.array([row.length - 1 for row in rows], np.int32)
    none = np.full(len(rows), -1, np.int32)
    chains = np.zeros(len(rows), np.uint8)
    return memory, _native.StepRows(n[:-1], last, last, none, n, last, chains, tables)


def together(
    level: str,
    rows: list[Sequence],
    shared: int,
    order: NDArray[np.int32],
    more: int = 0,
) -> Floats:
    """Rows in ``order``; the kernel is told of ``more`` positions than there are in common."""
    shape = rows[0].shape
    pages, step = on_shared_pages(rows, shared)
    kernels, kv = _native.Kernels(level), pages.native()
    q = np.concatenate([row.q[-1:] for row in rows])
    out = np.full_like(q, np.nan)
    for head in range(shape.n_kv_heads):
        item = (0, 0, 0, head, shape.sinks, False, None, shape.chunked, order)
        rule = (shape.scale, shape.softcap, shape.window)
        known = shared // shape.block_size * shape.block_size + more
        kernels.attention(q, out, *rule, kv, step, *item, known, shape.slopes)
    return out


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name in OF_ALL for case in OF_SOME] + [("plain", case) for case in CASES],
)
def test_kernels_give_each_row_its_bits(name: str, case: str) -> None:
    shared, tails = CASES[case]
    rows = branches(SHAPES[name], shared, tails)
    order = np.random.default_rng(len(rows)).permutation(len(rows)).astype(np.int32)
    alone = [whole(LEVELS[-1], row, row.length - 1, row.length) for row in rows]
    expected = np.concatenate([alone[i] for i in order])
    assert np.isfinite(expected).all()
    for level in LEVELS:
        assert_array_equal(together(level, rows, shared, order), expected, level)


@pytest.mark.parametrize("name", ["plain", "f32", "int8", "window"])
def test_kernels_take_many_rows(name: str) -> None:
    rows = branches(SHAPES[name], 192, tuple(1 + 3 * i % 50 for i in range(64)))
    order = np.arange(64, dtype=np.int32)
    alone = [whole(LEVELS[-1], row, row.length - 1, row.length) for row in rows]
    assert_array_equal(together(LEVELS[-1], rows, 192, order), np.concatenate(alone))


def test_tables_that_differ_are_refused() -> None:
    rows, order = branches(SHAPES["plain"], 64, (20, 30)), np.arange(2, dtype=np.int32)
    with pytest.raises(ValueError, match="tables begin alike"):
        together(LEVELS[-1], rows, 64, order, more=16)
    with pytest.raises(ValueError, match="no more is shared than is stored"):
        together(LEVELS[-1], rows, 64, order, more=32)
    with pytest.raises(ValueError, match="a token leaves the step"):
        together(LEVELS[-1], rows, 64, np.array([0, 2], np.int32))


N_ROWS, MAX_LEN = 20, 1200
MODELS: dict[str, Callable[[Path], tuple[Path, str]]] = {
    "llama": lambda p: (tiny.write_gguf_model(tiny.llama(), p / "m.gguf", "Q8_0"), "auto"),
    "mistral": lambda p: (tiny.write_hf(tiny.mistral(window=100), p), "bfloat16"),
    "gemma3": lambda p: (tiny.write_hf(tiny.gemma3(sliding_window=90), p), "bfloat16"),
    "deepseek": lambda p: (tiny.write_hf(tiny_latent.deepseek_v2(), p), "float32"),
}
SPLITS = {
    # positions in common, and what rows have behind them; rows of one number share that trunk
    "three": (1008, (20, 30, 100), (0, 0, 0)),
    "twenty": (144, tuple(1 + 7 * i % 40 for i in range(N_ROWS)), (0,) * N_ROWS),
    "two trunks and one alone": (256, (3, 70, 20, 1, 9, 40), (0, 1, 2, 0, 1, 0)),
    "none": (64, (3, 4, 5), (0, 1, 2)),
}


class Branches:
    """Rows of a program: each behind the blocks of its trunk and blocks of its own, or behind a
    copy of all of them."""

    def __init__(self, model: Loaded, split: str) -> None:
        self.model = model
        self.shared, self.tails, self.trunks = SPLITS[split]
        self.n_shared = self.shared // BLOCK
        self.opens = tuple(SlotOpen(i, GREEDY, self.tokens(i)) for i in range(len(self.tails)))

    def tokens(self, row: int) -> tuple[int, ...]:
        trunk, tail = self.trunks[row], range(self.tails[row])
        own = ((5 * i + 3 * row) % tiny.VOCAB for i in tail)
        return (*((7 * i + i // 11 + trunk) % tiny.VOCAB for i in range(self.shared)), *own)

    def table(self, row: int, is_shared: bool) -> tuple[int, ...]:
        n = MAX_LEN // BLOCK
        first = self.trunks.index(self.trunks[row]) if is_shared else row
        trunk = range(first * n, first * n + self.n_shared)
        return (*trunk, *range(row * n + self.n_shared, row * n + n))

    def placed(self, row: int, start: int, stop: int, is_shared: bool) -> Placed:
        tables = (self.table(row, is_shared),)
        n_logits = int(stop == len(self.tokens(row)))
        return placed(row, start, self.tokens(row)[start:stop], tables, n_logits=n_logits)

    def run(self, threads: int, is_shared: bool) -> list[NDArray[np.float32]]:
        """Logits of the newest token of each, in one step, or one after the other."""
        spec = sizes_for(self.model.config, N_ROWS, MAX_LEN)
        spec = with_fields(spec, max_num_batched_tokens=MAX_LEN)
        executor = CpuExecutor(
            self.model.program, self.model.binding, spec, CpuSettings(threads, BEST)
        )
        executor.run(step_plan(0, (self.placed(0, 0, 1, is_shared),), self.opens))
        rows = range(len(self.tails))
        step = 1
        for row in rows:
            is_first = self.trunks.index(self.trunks[row]) == row
            begin = self.shared if is_shared and not is_first else 0
            last = len(self.tokens(row)) - 1
            if begin < last:
                executor.run(step_plan(step, (self.placed(row, begin, last, is_shared),)))
                step += 1
        lengths = [len(self.tokens(row)) for row in rows]
        newest = [self.placed(row, lengths[row] - 1, lengths[row], is_shared) for row in rows]
        if is_shared:
            return list(plan_logits(executor, step_plan(step, newest)))
        return [
            plan_logits(executor, step_plan(step + i, (one,)))[0] for i, one in enumerate(newest)
        ]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", MODELS)
def test_programs_give_each_row_its_bits(name: str, split: str, tmp_path: Path) -> None:
    path, dtype = MODELS[name](tmp_path)
    rows = Branches(load(path, dtype, max_positions=MAX_LEN), split)
    alone = rows.run(1, is_shared=False)
    assert all(np.isfinite(logits).all() for logits in alone)
    assert len({logits.tobytes() for logits in alone}) > 1
    for threads in (1, 2, n_of(3, 5)):
        for logits, expected in zip(rows.run(threads, is_shared=True), alone, strict=True):
            assert_array_equal(logits, expected)
