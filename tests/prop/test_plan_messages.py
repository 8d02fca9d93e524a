"""A plan is a message: what is decoded equals what was encoded."""

from __future__ import annotations

import time
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.core.params import TokenParams
from kvasir.core.plan import (
    MAX_LOGIT_ROWS,
    Copy,
    Move,
    Row,
    SlotOpen,
    StepPlan,
    TableChange,
    TowerRun,
    Transfer,
    reference,
    referred,
)
from kvasir.core.request import EngineRequest, PoolKind
from kvasir.core.tiles import Media
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from tests.sizes import config_of

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
MEDIA = st.builds(Media, SMALL, SMALL, st.binary(max_size=9), st.binary(max_size=32), SMALL)
FIELDS: dict[type[msgspec.Struct], dict[str, st.SearchStrategy[Any]]] = {
    SlotOpen: {
        "slot": SMALL,
        "params": PARAMS,
        "prompt": TOKENS,
        "output": TOKENS,
        "pooling": st.sampled_from([None, *get_args(PoolKind)]),
        "second": SMALL,
        "media": st.lists(MEDIA, max_size=2).map(tuple),
    },
    Row: {
        "slot": SMALL,
        "start": SMALL,
        "tokens": TOKENS,
        "n_logits": SMALL,
        "out_index": SMALL,
        "parents": TOKENS,
        "targets": TOKENS,
        "n_drafts": SMALL,
        "n_sampled": SMALL,
    },
}


def some(kind: type[msgspec.Struct], *fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.builds(kind, *fields, **FIELDS.get(kind, {})), max_size=5).map(tuple)


TRANSFERS = some(Transfer, st.binary(max_size=40), SMALL, SMALL)
FIELDS[StepPlan] = {
    "step": SMALL,
    "rows": some(Row),
    "opens": some(SlotOpen),
    "tables": some(TableChange, SMALL, SMALL, SMALL, BLOCKS),
    "commits": st.lists(st.tuples(SMALL, SMALL)).map(tuple),
    "moves": some(Move, SMALL, SMALL, SMALL),
    "copies": some(Copy, BLOCKS, BLOCKS, SMALL),
    "saves": TRANSFERS,
    "loads": TRANSFERS,
    "towers": some(TowerRun, SMALL, st.binary(max_size=32), SMALL),
    "forgets": st.booleans(),
    "follows": st.none() | some(Row),
}


@given(st.integers(0, MAX_LOGIT_ROWS - 1), st.integers(0, 1000))
def test_a_reference_says_which_draft_of_which_row(row: int, draft: int) -> None:
    token = reference(row, draft)
    assert referred(token) == (row, draft)
    assert -(1 << 31) <= token < 0
    assert draft or token == -1 - row


@pytest.mark.parametrize("kind", FIELDS)
def test_messages_have_every_field(kind: type[msgspec.Struct]) -> None:
    assert tuple(FIELDS[kind]) == kind.__struct_fields__


@given(st.builds(StepPlan, **FIELDS[StepPlan]))
def test_a_plan_comes_back_as_it_was(plan: StepPlan) -> None:
    data = msgspec.msgpack.encode(plan)
    assert msgspec.msgpack.decode(data, type=StepPlan) == plan
    assert msgspec.msgpack.decode(data)["type"] == "step_plan"


def test_steps_of_many_long_requests_are_small_messages() -> None:
    """A block table of 512 blocks for each of 64 requests would be a hundred kilobytes."""
    n_requests, n_prompt, n_outputs = 64, 8128, 64
    config = config_of(8192, n_requests, 65_536, n_requests * 512, 16, vocab_size=97)
    made, executor = Scheduler(config), FakeExecutor(config.sizes)
    for i in range(n_requests):
        params = TokenParams(seed=i, max_tokens=n_outputs)
        made.add(EngineRequest(i, (i, *[5] * (n_prompt - 1)), params))
    sizes: list[int] = []
    seconds: list[float] = []
    n_told = 0
    while plan := made.plan():
        if len(plan.rows) == n_requests and not plan.opens:
            sizes.append(len(msgspec.msgpack.encode(plan)))
            seconds.append(codec_seconds(plan))
            n_told += sum(len(change.blocks) for change in plan.tables)
        made.commit(plan, executor.run(plan))
    executor.close()
    assert max(sizes) < 4096
    assert min(seconds) < 1e-4, "0.012 ms on a quiet machine"
    assert 0 < n_told <= n_requests * n_outputs // 16, "new blocks, and no others"
    assert len(sizes) > n_outputs // 2


def codec_seconds(plan: StepPlan) -> float:
    """Of the processor, to encode a plan and to decode it."""
    began = time.thread_time()
    msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan)
    return time.thread_time() - began
