"""Requests that pool: which tokens, which rows, which events, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent
from kvasir.core.plan import Row, SlotOpen, StepPlan, StepResult
from kvasir.core.request import NO_DRAWS, EngineRequest, PoolKind
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.pooling import NO_POOL, PooledSlots, StepPool, Sums, pooled_span
from kvasir.ir.bundle import TARGET, verify_joined
from kvasir.ir.ops import ShapeError
from kvasir.ir.pool import with_pool
from kvasir.ir.printer import render
from kvasir.ir.verify import verify
from kvasir.sched.scheduler import Scheduler
from tests import tiny
from tests.loading import load
from tests.sizes import config_of

VECTOR = np.array([1.0, -2.0], "<f4").tobytes()


def pooled(i: int, n: int, kind: PoolKind = "mean") -> EngineRequest:
    return EngineRequest(i, tuple(range(n)), NO_DRAWS, pooling=kind)


def made(**changes: bool) -> Scheduler:
    config = config_of(64, 4, 16, 16, 16, vocab_size=97, **changes)
    return Scheduler(config)


def opening(slot: int, n: int, kind: PoolKind | None) -> SlotOpen:
    return SlotOpen(slot, NO_DRAWS, tuple(range(n)), pooling=kind)


@pytest.mark.parametrize(("kind", "span"), [("cls", (0, 1)), ("mean", (0, 5)), ("last", (4, 5))])
def test_the_tokens_of_each_kind(kind: PoolKind, span: tuple[int, int]) -> None:
    assert pooled_span(kind, 5) == span


def test_what_a_step_adds_begins_and_ends() -> None:
    slots = PooledSlots()
    assert slots.of(StepPlan(0, (Row(0, 0, (1,)),), (opening(0, 1, None),))) == NO_POOL
    opens = opening(1, 5, "mean"), opening(2, 5, "last"), opening(3, 2, "cls")
    rows = (
        Row(0, 1, (9,)),
        Row(1, 0, (1, 2, 3), 0),
        Row(2, 0, (1, 2, 3), 0),
        Row(3, 0, (1, 2), 0),
    )
    first = slots.of(StepPlan(1, rows, opens))
    assert first == StepPool([1, 2, 3, 7], [1, 1, 1, 3], [1, 3], [(3, 1)])
    rows = (Row(2, 3, (4, 5), 0), Row(1, 3, (4, 5), 0))
    second = slots.of(StepPlan(2, rows, (opening(3, 1, None),)))
    assert second == StepPool([1, 2, 3], [2, 1, 1], [2], [(2, 1), (1, 5)])
    assert slots.of(StepPlan(3, (Row(3, 0, (1,), 0),))) == StepPool([], [], [], [])


def test_sums_of_a_slot_begin_anew() -> None:
    sums = Sums(2, 2)
    for row in ((1.0, 2.0), (2.0, -8.0)):
        sums.begin(StepPool(begun=[1]) if row[0] == 1 else NO_POOL)
        sums.array[1] += row
    assert sums.vectors(StepPool(ended=[(1, 2)])) == (np.array([1.5, -3.0], "<f4").tobytes(),)
    sums.begin(StepPool(begun=[1]))
    assert not sums.array.any()
    sums.array[1, 0] = np.inf
    assert sums.vectors(StepPool(ended=[(1, 2)])) == (b"",)


def test_a_prompt_ends_with_its_vector() -> None:
    scheduler = made()
    scheduler.add(pooled(7, 20))
    first = scheduler.plan()
    assert first is not None
    assert first.opens[0].pooling == "mean"
    assert [(row.start, len(row.tokens), row.n_logits) for row in first.rows] == [(0, 16, 0)]
    second = scheduler.plan()
    assert second is not None
    assert [(row.start, len(row.tokens), row.n_logits) for row in second.rows] == [(16, 4, 0)]
    assert scheduler.commit(first, StepResult(())) == ()
    assert scheduler.plan() is None
    events = scheduler.commit(second, StepResult((), vectors=(VECTOR,)))
    assert events == (TokenEvent(7, finish="stop", vector=VECTOR),)
    scheduler.check()
    assert not scheduler.has_work


def test_a_vector_that_is_not_finite_ends_its_request_alone() -> None:
    scheduler = made()
    for i in (1, 2):
        scheduler.add(pooled(i, 3, "last"))
    plan = scheduler.plan()
    assert plan is not None
    failed, fine = scheduler.commit(plan, StepResult((), vectors=(b"", VECTOR)))
    assert (failed.finish, failed.error_code, failed.vector) == ("error", "model_numerics", b"")
    assert fine.vector == VECTOR
    assert scheduler.stats().n_failed == 1


def test_an_executor_without_the_program_is_told() -> None:
    scheduler = made()
    scheduler.add(pooled(1, 3))
    plan = scheduler.plan()
    assert plan is not None
    with pytest.raises(KvasirError, match="request 1 pools, and the executor has no program"):
        scheduler.commit(plan, StepResult(()))


@pytest.mark.parametrize(("kind", "n_cached"), [("last", 47), ("mean", 0), ("cls", 0)])
def test_only_the_last_token_goes_on_from_the_cache(kind: PoolKind, n_cached: int) -> None:
    config = config_of(64, 4, 64, 16, 16, vocab_size=97, enable_prefix_caching=True)
    engine = Engine(FakeExecutor(config.sizes), Scheduler(config))
    found = []
    for i in range(2):
        engine.add(pooled(i, 48, kind))
        found += [event for event in engine.step().events if event.finish]
    assert [event.n_cached for event in found] == [0, n_cached]
    assert found[0].vector == found[1].vector
    assert len(found[0].vector) == 64


def test_a_prompt_may_fill_the_context_and_no_more() -> None:
    scheduler = made()
    scheduler.add(pooled(1, 64))
    with pytest.raises(RequestError, match="65 tokens, the limit is 64"):
        scheduler.add(pooled(2, 65))


def test_a_request_draws_or_pools() -> None:
    config = config_of(64, 4, 64, 16, 16, vocab_size=97)
    engine = Engine(FakeExecutor(config.sizes), Scheduler(config))
    request = pooled(1, 3)
    with pytest.raises(RequestError, match="draws nothing"):
        engine.add(replace(request, params=replace(NO_DRAWS, max_tokens=1)))


def test_the_target_stays_what_it_is(tmp_path: Path) -> None:
    model = load(tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q4_1"), "auto")
    bundle = with_pool(model.program)
    verify_joined(bundle)
    for program in bundle.programs.values():
        verify(program, "lowered")
    assert bundle.programs[TARGET].ops == model.program.ops
    assert bundle.exports == ("l2.x.mlp",)
    pool = bundle.pool
    assert pool is not None
    assert render(pool).splitlines()[3:] == [
        "pool.rows: f32[R, 64] = gather_rows(l2.x.mlp, pool_rows)",
        "pool.norm: f32[R, 64] = norm(pool.rows) [final_norm] "
        "{eps=9.99999975e-06, to=f32, block=0}",
        "pooled: f32[R, 64] = pool(pool.norm)",
        "outputs pooled",
    ]


def test_a_program_without_a_head_is_refused(tmp_path: Path) -> None:
    model = load(tiny.write_hf(tiny.llama(), tmp_path))
    ops = tuple(op for op in model.program.ops if op.kind != "gather_rows")
    with pytest.raises(ShapeError, match="no norm of gathered rows"):
        with_pool(replace(model.program, ops=ops))
