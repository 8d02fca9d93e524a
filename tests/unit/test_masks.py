"""Constrained requests: what they get, what their masks may do, and that nothing waits for ever."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, SlotOpen, StepPlan
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.exec import masks as exec_masks
from kvasir.exec.base import Executor
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.masks import ConstrainedSlots, PlainMasks
from kvasir.exec.reference import ReferenceExecutor, load_weights
from kvasir.sampling.masks import Bits, Masks, allows, apply
from kvasir.sched.scheduler import Scheduler
from tests import tiny
from tests.automaton import Ring, keeps_to
from tests.loading import load
from tests.native import BEST
from tests.oracle_drafts import OracleProposer
from tests.planned import placed, step_plan
from tests.sizes import config_of

VOCAB = 101
PARAMS = TokenParams(seed=3, max_tokens=20, constraint="7:3")
Make = Callable[[EngineSizes], Executor]
overlaps = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])


class Watched(Ring):
    """Fails where it is told to, and knows what it was asked."""

    def __init__(self, fails: str = "", error: BaseException | None = None, after: int = 0) -> None:
        super().__init__(VOCAB)
        self.fails = fails
        self.error = error or RuntimeError("injected")
        self.after = after
        self.asked: list[tuple[int, ...]] = []

    def _passes(self, name: str) -> None:
        if name == self.fails:
            self.after -= 1
            if self.after < 0:
                self.fails = ""
                raise self.error

    def open(self, slot: int, constraint: str, outputs: Sequence[int]) -> None:
        self._passes("open")
        super().open(slot, constraint, outputs)

    def accept(self, slot: int, tokens: Sequence[int]) -> None:
        self._passes("accept")
        super().accept(slot, tokens)

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        self.asked.append(tuple(path))
        self._passes("fill")
        super().fill(slot, path, bits)

    @property
    def n_open(self) -> int:
        return len(self._slots)


def engine(
    masks: Masks | None, *, overlap: bool = False, drafts: dict[int, tuple[int, ...]] | None = None
) -> Engine:
    config = config_of(
        128, 4, 32, 40, 16, vocab_size=VOCAB, max_draft_tokens=0 if drafts is None else 6
    )
    proposer = None if drafts is None else OracleProposer(drafts, VOCAB, n_siblings=1)
    scheduler = Scheduler(config, proposer)
    return Engine(FakeExecutor(config.sizes), scheduler, overlap=overlap, masks=masks)


def request(i: int, constraint: str = "7:3", **changes: object) -> EngineRequest:
    params = replace(PARAMS, seed=i, constraint=constraint, **changes)
    return EngineRequest(i, tuple(range(i, i + 20)), params)


def answers(made: Engine, *requests: EngineRequest) -> dict[int, list[TokenEvent]]:
    """Everything that is told, by request; nothing is left behind."""
    made.submit(requests)
    events: dict[int, list[TokenEvent]] = {}
    while made.has_work:
        for event in made.step().events:
            events.setdefault(event.id, []).append(event)
        made.check()
    return events


def tokens(events: Sequence[TokenEvent]) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.tokens)


def test_the_kind_of_constraint_that_the_page_adds_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs/add-a-mask.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(dedent(page.split("```python\n")[1].partition("```")[0]), names)
    even: Masks = names["Even"]()
    methods = [name for name in vars(Masks) if not name.startswith("_")]
    assert "object with seven methods" in page and len(methods) == 7
    for name in methods:
        told, wanted = (signature(getattr(one, name)) for one in (names["Even"], Masks))
        assert told.parameters == wanted.parameters
    assert even.prepare("even")()
    found = tokens(answers(engine(even), request(1, "even"))[1])
    assert len(found) == PARAMS.max_tokens and not any(token % 2 for token in found)


def test_a_mask_is_a_bit_for_each_token() -> None:
    bits = np.array([1 << 31, 0b10], np.uint32)
    assert [t for t in range(64) if allows(bits, t)] == [31, 33]
    logits = np.zeros(40, np.float32)
    apply(logits, bits)
    assert np.flatnonzero(logits == 0).tolist() == [31, 33]


def test_rows_that_draw_for_a_constrained_slot_have_a_mask() -> None:
    slots = ConstrainedSlots()
    opens = (SlotOpen(0, PARAMS, (1,)), SlotOpen(1, replace(PARAMS, constraint=""), (1,)))
    scored = Row(0, 0, (1, 2, 3), n_logits=3, targets=(2, 3, -1))
    rows = (Row(1, 0, (1,)), scored)
    assert {i: path for i, (_, path) in slots.rows(StepPlan(0, rows, opens)).items()} == {3: ()}
    tree = Row(0, 3, (4, 5, 6, 7), n_logits=4, parents=(-1, 0, 0, 2))
    found = slots.rows(StepPlan(1, (Row(1, 1, (-1,)), tree)))
    assert {i: path for i, (_, path) in found.items()} == {1: (), 2: (5,), 3: (6,), 4: (6, 7)}
    assert [path for _, path in slots.rows(StepPlan(2, (Row(0, 5, (-1,)),))).values()] == [()]
    again = SlotOpen(0, replace(PARAMS, constraint=""), (1,))
    assert not slots.rows(StepPlan(3, (Row(0, 0, (1,)),), (again,)))


def test_an_engine_without_masks_refuses_constraints() -> None:
    made = engine(None)
    with pytest.raises(RequestError, match="this engine has no masks"):
        made.add(request(1))
    assert [event.error_code for event in answers(made, request(1))[1]] == ["invalid_value"]


@overlaps
def test_answers_keep_to_their_constraint_with_and_without_drafts(overlap: bool) -> None:
    asked = [request(1), request(2, "3:1", temperature=0.0), request(3, ""), request(4, "97:11")]
    plain = answers(engine(Watched(), overlap=overlap), *asked)
    for one in asked:
        assert len(tokens(plain[one.id])) == 20
        assert not one.params.constraint or keeps_to(one.params.constraint, tokens(plain[one.id]))
        free = replace(one, params=replace(one.params, constraint=""))
        same = tokens(answers(engine(None), free)[one.id]) == tokens(plain[one.id])
        assert same == (not one.params.constraint)
    masks = Watched()
    known = {i: tokens(events) for i, events in plain.items()}
    drafted = answers(engine(masks, overlap=overlap, drafts=known), *asked)
    assert {i: tokens(events) for i, events in drafted.items()} == known
    assert max(map(len, masks.asked)) == 3  # six tokens in pairs
    assert masks.n_open == 0


@overlaps
def test_when_all_is_forbidden_that_request_ends(overlap: bool) -> None:
    found = answers(engine(Watched(), overlap=overlap), request(1, "5:0"), request(2))
    assert found[1][-1].error_code == "no_token_left"
    assert tokens(found[2]) == tokens(answers(engine(Watched()), request(2))[2])


@overlaps
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("fails", ["open", "accept", "fill"])
def test_a_request_whose_masks_fail_ends_alone(fails: str, after: int, overlap: bool) -> None:
    masks = Watched(fails, after=after)
    asked = [request(i) for i in range(1, 7)]
    made = engine(masks, overlap=overlap)
    found = answers(made, *asked)
    (failed,) = (i for i, events in found.items() if events[-1].finish == "error")
    last = found[failed][-1]
    assert last.error_code == "constraint_failed"
    assert last.error == "its constraint failed: RuntimeError: injected"
    for one in asked:
        alone = tokens(answers(engine(Ring(VOCAB)), one)[one.id])
        got = tokens(found[one.id])
        assert got == alone[: len(got) if one.id == failed else None]
    assert made.stats().n_failed == 1
    made.close()
    assert masks.n_open == 0


def test_what_a_cancelled_request_drew_is_nobodys() -> None:
    """Its row ran when it was cancelled, and another has its slot."""
    masks = Watched()
    config = config_of(128, 1, 32, 40, 16, vocab_size=VOCAB)
    executor = FakeExecutor(config.sizes)
    made = Engine(executor, Scheduler(config), overlap=True, masks=masks)
    made.submit([request(1), request(2)])
    for _ in range(4):
        made.step()
    made.cancel(1)
    found = answers(made)[2]
    assert found[-1].finish == "length"
    assert tokens(found) == tokens(answers(engine(Ring(VOCAB)), request(2))[2])


@overlaps
def test_an_ended_request_is_asked_nothing(overlap: bool) -> None:
    """Its row may be in a step that runs."""
    free = tokens(answers(engine(Ring(VOCAB)), request(1))[1])
    masks = Watched()
    found = answers(engine(masks, overlap=overlap), request(1, stop_ids=(free[4],)))
    assert found[1][-1].finish == "stop"
    assert len(masks.asked) == len(tokens(found[1])) == free.index(free[4]) + 1


@overlaps
def test_an_interrupted_engine_closes_at_once(overlap: bool) -> None:
    made = engine(Watched("fill", KeyboardInterrupt(), after=4), overlap=overlap)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        answers(made, request(1), request(2))
    made.close()
    assert time.monotonic() - began < 5


def fake(_: Path) -> Make:
    return FakeExecutor


def reference(folder: Path) -> Make:
    model = load(tiny.write_hf(tiny.llama(), folder), "float32")
    weights = load_weights(model.program, model.binding)
    return lambda sizes: ReferenceExecutor(model.program, weights, sizes)


def native(folder: Path) -> Make:
    model = load(tiny.write_hf(tiny.llama(), folder), "float32")
    settings = CpuSettings(2, BEST)
    return lambda sizes: CpuExecutor(model.program, model.binding, sizes, settings)


@pytest.fixture(scope="module", params=[fake, reference, native], ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Make:
    found: Make = request.param(tmp_path_factory.mktemp("model"))
    return found


SIZES = EngineSizes(tiny.VOCAB, 64, 4, 32, 8, 16)
TREE = placed(
    0, 2, (3, 4, 5), ((0,),), n_logits=3, out_index=1, parents=(-1, 0, 0)
)  # of which 5 is forbidden


def first_step() -> StepPlan:
    free = replace(PARAMS, constraint="")
    rows = (placed(0, 0, (1, 2), ((0,),)), placed(1, 0, (1, 2), ((1,),)))
    return step_plan(0, rows, (SlotOpen(0, PARAMS, (1, 2)), SlotOpen(1, free, (1, 2))))


def only(*ids: int) -> Bits:
    bits = np.zeros(-(-tiny.VOCAB // 32), np.uint32)
    for token in ids:
        bits[token // 32] |= np.uint32(1 << token % 32)
    return bits


def test_a_row_waits_for_its_mask(make: Make) -> None:
    executor = make(SIZES)
    first = executor.start(first_step())
    second = executor.start(step_plan(1, (placed(1, 2, (-2,), ((1,),), out_index=1), TREE)))
    time.sleep(0.05)
    first.fill(0, only(3))
    second.fill(2, only())  # in any order, also of a step that has not begun
    second.fill(1, only(4))
    with pytest.raises(KvasirError, match="logit row 0 waits for no mask"):
        second.fill(0, only(1))
    with pytest.raises(KvasirError, match="logit row 0 waits for no mask"):
        first.fill(0, only(1))
    assert first.result().outputs[0].token == 3
    assert first.result().outputs[1].token >= 0
    second.fill(3, only(6, 7))
    outputs = [output.token for output in second.result().outputs]
    assert outputs[0] >= 0
    assert outputs[1:3] == [4, -2]
    assert outputs[3] in (6, 7)
    executor.close()


def test_closing_leaves_no_row_waiting(make: Make) -> None:
    executor, began = make(SIZES), time.monotonic()
    handles = [executor.start(first_step()), executor.start(step_plan(1, (TREE,)))]
    handles[1].fill(0, only(4))
    executor.close()
    assert time.monotonic() - began < 5
    assert handles[0].result().outputs[0].token == -2
    assert [output.token for output in handles[1].result().outputs] == [4, -2, -2]


def test_a_mask_that_never_comes_fails_the_step(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (exec_masks, sys.modules["kvasir.exec.cpu.executor"]):
        monkeypatch.setattr(module, "WAIT_SECONDS", 0.1)
    executor = make(SIZES)
    with pytest.raises((KvasirError, RuntimeError), match="the mask of logit row 0 did not come"):
        executor.start(first_step()).result()
    executor.close()


def test_a_step_without_constraints_waits_for_nothing(make: Make) -> None:
    executor = make(SIZES)
    free = replace(PARAMS, constraint="")
    rows = (placed(0, 0, (1, 2), ((0,),)),)
    handle = executor.start(step_plan(0, rows, (SlotOpen(0, free, (1, 2)),)))
    with pytest.raises(KvasirError, match="no row of the step waits for a mask"):
        handle.fill(0, only(1))
    assert handle.result().outputs[0].token >= 0
    executor.close()


LEFT = """
from tests.unit.test_masks import SIZES, FakeExecutor, first_step
handle = FakeExecutor(SIZES).start(first_step())
"""


def test_a_program_that_forgets_to_close_ends() -> None:
    root = Path(__file__).parents[2]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=50, cwd=root
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 30


def test_masks_that_nobody_brings_are_let_go() -> None:
    masks = PlainMasks(3, [0, 2], 40)
    masks.fill(2, np.array([1, 2], np.uint32))
    masks.abandon()
    assert masks.wait(1) is None
    found = [masks.wait(row) for row in (0, 2)]
    assert [None if bits is None else bits.tolist() for bits in found] == [[0, 0], [1, 2]]
