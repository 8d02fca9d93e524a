"""Each second of a request has one cause, and the sentence names most of what it did not need."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvasir.serve.backpressure import Backpressure
from kvasir.timing.cost import Load, chunk_load
from kvasir.timing.records import StepRecord
from kvasir.timing.sentences import SENTENCES, sentence
from kvasir.timing.why import TimePart, Why
from tests.why_machine import (
    N_OUTPUT,
    N_PROMPT,
    PLACES,
    TRUE,
    Machine,
    blocks,
    passed,
    seconds,
    slots,
    turn,
)
from tests.why_runs import CAUSES, inject


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


def test_who_came_later_and_has_a_place_went_first() -> None:
    machine = Machine()
    machine.usual()
    machine.mark("queued", N_PROMPT)
    full, later = slots(machine), passed(machine)
    machine.mark("started")
    machine.prompt()
    machine.answer(40)
    machine.mark("finished")
    why = machine.why()
    assert seconds(why, "slots") == pytest.approx(full, rel=0.05)
    assert seconds(why, "turn") == pytest.approx(later, rel=0.05)


def test_what_disk_took_is_no_wait_for_others() -> None:
    machine = Machine()
    machine.usual()
    machine.mark("queued", N_PROMPT)
    waited = slots(machine)
    machine.mark("read", 48)
    machine.now += 2.0
    machine.mark("started", 48)
    machine.step((), ((1, 48, N_PROMPT - 48),))
    machine.answer(20)
    machine.mark("finished")
    why = machine.why()
    assert why.cause == "disk"
    assert seconds(why, "disk") == pytest.approx(2.0)
    assert seconds(why, "slots") == pytest.approx(waited, rel=0.05)


def test_a_long_prompt_is_a_cause() -> None:
    machine = Machine()
    machine.usual()
    machine.mark("queued", 5000)
    machine.mark("started")
    for start in range(0, 5000, 100):
        machine.step((), ((1, start, 100),))
    machine.answer(5)
    machine.mark("finished")
    why = machine.why()
    assert why.cause == "prompt" and why.alone == pytest.approx(why.seconds, rel=0.2)
    assert sentence(why, PLACES)[1]


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


@pytest.mark.parametrize(("detail", "cause"), [("", "preemption"), ("turn", "turn")])
def test_a_preemption_while_its_last_step_runs(detail: str, cause: str) -> None:
    """As plans overlap steps: each second is told once, and what is computed again in two chunks is
    the preemption's."""
    machine = Machine()
    gone = 0.0

    def answer() -> None:
        nonlocal gone
        machine.answer(50)
        end, machine.now = machine.now, machine.now - 1e-3
        machine.mark("preempted", N_PROMPT + 50, detail)
        machine.now = end
        for _ in range(60):
            machine.step((10, 11))
        machine.mark("started")
        machine.step((), ((1, 0, N_PROMPT + 10),))
        machine.step((), ((1, N_PROMPT + 10, 40),))
        gone = machine.now - end
        machine.answer(50)

    why = run(machine, answer)
    assert why.cause == cause
    assert seconds(why, cause) == pytest.approx(gone, rel=0.1)
    assert seconds(why, "engine") == pytest.approx(0.0, abs=0.002)
    assert sum(part.seconds for part in why.parts) == pytest.approx(why.seconds, rel=0.02)


def gaps(machine: Machine, slower: float) -> Callable[[], None]:
    def answer() -> None:
        for _ in range(60):
            machine.answer(1, slower=slower)
            machine.now += 0.01
        machine.answer(1)

    return answer


@pytest.mark.parametrize(
    ("slower", "has_masks", "cause"),
    [(1.0, False, "engine"), (1.0, True, "grammar"), (2.0, False, "machine")],
)
def test_whose_is_what_lies_between_steps(slower: float, has_masks: bool, cause: str) -> None:
    machine = Machine()
    run(machine, gaps(machine, slower))
    why = machine.why(has_masks=has_masks)
    assert why.cause == cause
    assert seconds(why, cause) > 0.55


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


@pytest.mark.parametrize("cause", CAUSES)
def test_causes_at_random_are_named_and_their_seconds_told(cause: str | None) -> None:
    n_runs = 20 if os.environ.get("KVASIR_LONG") else 3
    told = [inject(cause, seed) for seed in range(n_runs)]
    wrong = [(x.cause, x.truth, x.why) for x in told if not (x.is_named and x.is_right)]
    assert len(wrong) <= n_runs * 0.05
