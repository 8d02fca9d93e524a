"""The block pool against an oracle of plain counts."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.kv.pool import BlockPool
from kvasir.kv.table import BlockTable
from tests.tables import forked

N_BLOCKS = 12
BLOCK_SIZE = 16


class PoolMachine(RuleBasedStateMachine):
    """Tables grow, fork, shrink and go; the oracle counts owners by the tables themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(N_BLOCKS)
        self.tables: list[BlockTable] = []

    def owners(self) -> Counter[int]:
        return Counter(b for table in self.tables for b in table.held(0))

    @rule(n_tokens=st.integers(0, N_BLOCKS * BLOCK_SIZE + 20))
    def open(self, n_tokens: int) -> None:
        self.tables.append(BlockTable((self.pool,), BLOCK_SIZE))
        self.grow(len(self.tables) - 1, n_tokens)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 50), n_tokens=st.integers(0, N_BLOCKS * BLOCK_SIZE + 20))
    def grow(self, which: int, n_tokens: int) -> None:
        table = self.tables[which % len(self.tables)]
        before, n_free = table.held(0), self.pool.n_free
        missing = -(-n_tokens // BLOCK_SIZE) - len(before)
        if missing > n_free:
            with pytest.raises(CapacityError, match=f"needs {missing} blocks, {n_free} of 12"):
                table.grow(n_tokens)
            assert table.held(0) == before
            assert self.pool.n_free == n_free
            return
        table.grow(n_tokens)
        assert table.n_tokens >= n_tokens
        new = table.held(0)[len(before) :]
        assert table.held(0)[: len(before)] == before
        assert all(self.owners()[block] == 1 for block in new)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 50))
    def fork(self, which: int) -> None:
        self.tables.append(forked(self.tables[which % len(self.tables)]))

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 50), n_tokens=st.integers(0, 100))
    def trim(self, which: int, n_tokens: int) -> None:
        table = self.tables[which % len(self.tables)]
        table.trim(n_tokens)
        assert table.n_tokens <= max(0, n_tokens + BLOCK_SIZE - 1)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 50))
    def release(self, which: int) -> None:
        self.tables.pop(which % len(self.tables)).release()

    @invariant()
    def counts_agree(self) -> None:
        owners = self.owners()
        assert [self.pool.refs(block) for block in range(N_BLOCKS)] == [
            owners[block] for block in range(N_BLOCKS)
        ]
        assert self.pool.n_used == len(owners)
        assert self.pool.n_free + self.pool.n_used == N_BLOCKS
        self.pool.check()


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_a_hundred_thousand_operations_leave_nothing_behind() -> None:
    rng = random.Random(5)
    pool = BlockPool(64)
    held: list[tuple[int, ...]] = []
    for _ in range(100_000):
        if held and (rng.random() < 0.5 or pool.n_free < 4):
            pool.free(held.pop(rng.randrange(len(held))))
        elif held and rng.random() < 0.3:
            twin = rng.choice(held)
            pool.share(twin)
            held.append(twin)
        else:
            held.append(pool.allocate(rng.randint(0, 4)))
    assert pool.n_used == len({block for blocks in held for block in blocks})
    for blocks in held:
        pool.free(blocks)
    assert pool.n_free == 64
    pool.check()


def test_a_double_free_is_an_error() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.free(blocks)
    with pytest.raises(KvasirError, match="is free and has no owner"):
        pool.free(blocks)
    with pytest.raises(KvasirError, match="is free and has no owner"):
        pool.share(blocks)
    with pytest.raises(KvasirError, match="block 9 is outside the pool of 4"):
        pool.refs(9)
    pool.check()
