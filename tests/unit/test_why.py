"""Each second of a request has one cause, and the sentence names most of what it did not need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvasir.serve.backpressure import Backpressure
from kvasir.serve.slices import at_once
from kvasir.timing.cost import CostModel, Costs, Load, chunk_load
from kvasir.timing.records import Mark, StepRecord
from kvasir.timing.sentences import SENTENCES, sentence
from kvasir.timing.timeline import Timeline
from kvasir.timing.why import (
    Began,
    EnginePlaces,
    TimePart,
    Unread,
    Why,
    all_read,
    explain,
    fitted,
)

TRUE = CostModel(Costs(step=4e-3, row=1e-3, token=2e-4, pair=1e-9, entry=1e-9))
PLACES = EnginePlaces(n_slots=4, block_size=16)
N_PROMPT, N_OUTPUT = 64, 200


class Machine:
    """Makes a timeline by hand: a clock, one request that matters (1), and others."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timeline = Timeline(lambda: self.now)
        self.n = 0

    def mark(self, kind: str, n_tokens: int = 0, *, of: int = 1) -> None:
        self.timeline.add(Mark(of, self.now, kind, n_tokens))

    def step(
        self,
        decodes: tuple[int, ...] = (),
        chunks: tuple[tuple[int, int, int], ...] = (),
        *,
        slower: float = 1.0,
        blocks_free: int = 100,
        n_waiting: int = 0,
    ) -> None:
        load = Load(*(len(decodes) * x for x in chunk_load(1, N_PROMPT)))
        for _, start, n in chunks:
            load = load.plus(chunk_load(n, start))
        seconds = TRUE.step_seconds(load) * slower
        record = StepRecord(
            self.n, self.now, seconds, decodes, chunks, (), (), n_waiting, blocks_free
        )
        self.timeline.add(record)
        self.n += 1
        self.now += seconds

    def usual(self) -> None:
        """Steps of others, before all: what steps cost is known from these."""
        for i in range(120):
            self.step(tuple(range(10, 11 + i % 4)))
            self.step((10,), ((11, 0, 16 * (1 + i % 4)),))

    def prompt(self, beside: tuple[int, ...] = ()) -> None:
        self.step(beside, ((1, 0, N_PROMPT),))

    def answer(self, n: int = N_OUTPUT, beside: tuple[int, ...] = (), slower: float = 1.0) -> None:
        for _ in range(n):
            self.step((1, *beside), slower=slower)

    def why(
        self,
        *,
        received: float | None = None,
        compile_seconds: float = 0.0,
        loads: bool = False,
        unread: Unread = all_read,
    ) -> Why:
        story = self.timeline.story(1)
        assert story is not None
        costs = at_once(fitted(self.timeline.recent(5000)[:240], N_PROMPT))
        steps = self.timeline.steps_of(1)
        begun = story.arrived if received is None else received
        began = Began(begun, compile_seconds, loads)
        return at_once(explain(story, steps, costs, PLACES, began, unread))


def seconds(why: Why, cause: str) -> float:
    return sum(part.seconds for part in why.parts if part.cause == cause)


def wait(machine: Machine, beside: tuple[int, ...], blocks_free: int) -> None:
    for _ in range(100):
        machine.step(beside, n_waiting=1, blocks_free=blocks_free)


def slots(machine: Machine) -> float:
    began = machine.now
    wait(machine, (10, 11, 12, 13), 100)
    return machine.now - began


def blocks(machine: Machine) -> float:
    began = machine.now
    wait(machine, (10, 11), 1)
    return machine.now - began


def turn(machine: Machine) -> float:
    began = machine.now
    wait(machine, (10, 11), 100)
    return machine.now - began


@pytest.mark.parametrize("cause", [slots, blocks, turn])
def test_a_wait_is_of_what_was_short(cause: Callable[[Machine], float]) -> None:
    machine = Machine()
    machine.usual()
    machine.mark("queued", N_PROMPT)
    waited = cause(machine)
    machine.mark("started")
    machine.prompt()
    machine.answer(40)
    machine.mark("finished")
    why = machine.why()
    assert why.cause == cause.__name__
    assert seconds(why, cause.__name__) == pytest.approx(waited, rel=0.1)


def run(machine: Machine, answer: Callable[[], None]) -> Why:
    machine.usual()
    machine.mark("queued", N_PROMPT)
    machine.mark("started")
    machine.prompt()
    answer()
    machine.mark("finished")
    return machine.why()


def test_who_is_alone_was_slowed_by_nothing() -> None:
    machine = Machine()
    why = run(machine, machine.answer)
    assert why.cause is None
    assert why.alone == pytest.approx(why.seconds, rel=0.1)
    assert sentence(why, PLACES)[0].startswith("Nothing slowed it down")


def test_prompts_of_others_in_its_steps() -> None:
    machine = Machine()
    extra = TRUE.chunk_seconds(200, 0)

    def answer() -> None:
        for i in range(N_OUTPUT):
            machine.step((1,), ((20, 0, 200),) if i % 2 else ())

    why = run(machine, answer)
    assert why.cause == "others_prompts"
    assert seconds(why, "others_prompts") == pytest.approx(extra * N_OUTPUT / 2, rel=0.15)


def test_steps_that_only_decode_are_told_as_any_other() -> None:
    """A forced row of one token costs what a decode costs."""
    plain, mixed = Machine(), Machine()
    run(plain, lambda: plain.answer(beside=(10, 11, 12)))

    def answer() -> None:
        for _ in range(N_OUTPUT):
            load = Load(*(4 * x for x in chunk_load(1, N_PROMPT)))
            seconds = TRUE.step_seconds(load)
            forced = ((12, 1),)
            record = StepRecord(mixed.n, mixed.now, seconds, (1, 10, 11), (), (), forced, 0, 100)
            mixed.timeline.add(record)
            mixed.n += 1
            mixed.now += seconds

    told, same = run(mixed, answer), plain.why()
    assert [part.cause for part in told.parts] == [part.cause for part in same.parts]
    for one, other in zip(told.parts, same.parts, strict=True):
        assert one.seconds == pytest.approx(other.seconds, rel=1e-6)
    assert told.alone == pytest.approx(same.alone, rel=1e-6)


def test_answers_of_others_in_its_steps() -> None:
    machine = Machine()
    why = run(machine, lambda: machine.answer(beside=(10, 11, 12)))
    assert why.cause == "others_answers"


def test_a_machine_that_somebody_else_has() -> None:
    machine = Machine()
    why = run(machine, lambda: machine.answer(slower=1.8))
    assert why.cause == "machine"
    assert seconds(why, "machine") == pytest.approx(why.seconds * 0.8 / 1.8, rel=0.1)


def test_a_preemption_is_its_wait_and_what_was_computed_again() -> None:
    machine = Machine()

    def answer() -> None:
        machine.answer(50)
        machine.mark("preempted", N_PROMPT + 50)
        for _ in range(60):
            machine.step((10, 11))
        machine.mark("started")
        machine.step((), ((1, 0, N_PROMPT + 50),))
        machine.answer(50)

    why = run(machine, answer)
    assert why.cause == "preemption"


def test_a_restart() -> None:
    machine = Machine()

    def answer() -> None:
        machine.answer(20)
        machine.now += 1.0
        machine.mark("queued", N_PROMPT)  # again: the timeline calls that replayed
        machine.now += 0.2
        machine.mark("started")
        machine.step((), ((1, 0, N_PROMPT + 20),))
        machine.answer(20)

    why = run(machine, answer)
    assert why.cause == "restart"
    assert seconds(why, "restart") == pytest.approx(1.2, rel=0.1)


def test_before_the_engine_had_it() -> None:
    machine = Machine()
    run(machine, lambda: machine.answer(20))
    story = machine.timeline.story(1)
    assert story is not None
    why = machine.why(received=story.arrived - 3.0, compile_seconds=2.0)
    assert why.cause == "grammar"
    assert seconds(why, "grammar") == pytest.approx(2.0)
    assert seconds(why, "before") == pytest.approx(1.0)
    why = machine.why(received=story.arrived - 3.0, loads=True)
    assert why.cause == "load"


def test_a_slow_reader_is_what_comes_after_the_last_token() -> None:
    machine = Machine()
    backpressure = Backpressure(lambda: machine.now)

    def answer() -> None:
        machine.answer(20)
        backpressure.begin()
        machine.answer(100)

    whole = run(machine, answer).seconds
    machine.now += 2.0
    assert machine.why(unread=backpressure.after).cause == "reader"  # it waits still
    backpressure.end()
    for _ in range(10):  # what fits is taken, and the next has to wait
        machine.now += 0.001
        backpressure.begin()
        machine.now += 0.099
        backpressure.end()
    machine.now += 5.0
    why = machine.why(unread=backpressure.after)
    assert why.cause == "reader" and "read slowly" in sentence(why, PLACES)[0]
    assert seconds(why, "reader") == pytest.approx(3.0, rel=0.02)
    assert why.seconds == pytest.approx(whole + 3.0, rel=0.02)
    assert machine.why().cause is None


def test_waits_that_delay_nothing_are_no_slow_reader() -> None:
    machine = Machine()
    backpressure = Backpressure(lambda: machine.now)

    def answer() -> None:
        for _ in range(40):
            backpressure.begin()
            machine.answer(5)
            backpressure.end()
            machine.now += 0.1
        machine.answer(1)

    run(machine, answer)
    assert seconds(machine.why(unread=backpressure.after), "reader") == 0
    first = machine.timeline.story(1)
    assert first is not None and backpressure.after(first.arrived) > 0


def test_all_seconds_are_somebodys() -> None:
    machine = Machine()
    why = run(machine, lambda: machine.answer(beside=(10,), slower=1.3))
    assert sum(part.seconds for part in why.parts) == pytest.approx(why.seconds, rel=0.02)
    assert [part.at for part in why.parts] == sorted(part.at for part in why.parts)


def test_the_page_names_every_cause() -> None:
    root = Path(__file__).parents[2]
    page = (root / "kvasir/web/page/why.js").read_text(encoding="utf-8")
    text = (root / "docs/web.md").read_text(encoding="utf-8")
    for cause in (*SENTENCES, "prompt", "answer"):
        assert f"\n  {cause}: '" in page and f"`{cause}`" in text


def test_every_cause_has_a_sentence_and_a_remedy() -> None:
    for cause, (_, remedy) in SENTENCES.items():
        why = Why(2.0, 1.0, (TimePart(cause, 0.0, 1.5),), cause)
        told, helps = sentence(why, PLACES)
        assert told.startswith("1.50 s of 2.00 s: ") and "{" not in told
        assert helps == remedy != ""
