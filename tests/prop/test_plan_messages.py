"""A plan is a message: what is decoded equals what was encoded."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvasir.core.params import TokenParams
from kvasir.core.plan import Copy, Move, Row, SlotOpen, StepPlan, TableChange, Transfer

SMALL = st.integers(0, 1 << 20)
TOKENS = st.lists(st.integers(-(1 << 10), 1 << 20), max_size=5).map(tuple)
BLOCKS = st.lists(st.integers(-1, 1 << 20), max_size=5).map(tuple)
PARAMS = st.builds(
    TokenParams,
    temperature=st.floats(0, 2),
    seed=st.integers(0, (1 << 64) - 1),
    max_tokens=st.integers(1, 1 << 20),
    logit_bias=st.lists(st.tuples(SMALL, st.floats(-100, 100)), max_size=3).map(tuple),
    stop_ids=st.lists(SMALL, max_size=3).map(tuple),
)
PLANS = st.builds(
    StepPlan,
    SMALL,
    st.lists(st.builds(Row, SMALL, SMALL, TOKENS, SMALL, SMALL, TOKENS, TOKENS)).map(tuple),
    st.lists(st.builds(SlotOpen, SMALL, PARAMS, TOKENS, TOKENS), max_size=3).map(tuple),
    st.lists(st.builds(TableChange, SMALL, SMALL, SMALL, BLOCKS)).map(tuple),
    st.lists(st.tuples(SMALL, SMALL)).map(tuple),
    st.lists(st.builds(Move, SMALL, SMALL, SMALL)).map(tuple),
    st.lists(st.builds(Copy, BLOCKS, BLOCKS, SMALL)).map(tuple),
    st.lists(st.builds(Transfer, st.binary(max_size=40), SMALL, SMALL)).map(tuple),
    st.lists(st.builds(Transfer, st.binary(max_size=40), SMALL, SMALL)).map(tuple),
)


@given(PLANS)
def test_a_plan_comes_back_as_it_was(plan: StepPlan) -> None:
    data = msgspec.msgpack.encode(plan)
    assert msgspec.msgpack.decode(data, type=StepPlan) == plan
    assert msgspec.msgpack.decode(data)["type"] == "step_plan"


def test_a_step_of_many_long_requests_is_a_small_message() -> None:
    """A block table of 512 blocks for each of 64 requests would be a hundred kilobytes."""
    rows = tuple(Row(slot, 8191, (100_000 + slot,), out_index=8000) for slot in range(64))
    tables = tuple(TableChange(slot, 0, 511, (30_000 + slot,)) for slot in range(0, 64, 16))
    assert len(msgspec.msgpack.encode(StepPlan(100_000, rows, (), tables))) < 2048
