"""The engine around the scheduler: refusals, cancellation in every phase, faults, replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.engine.loop import EngineFault
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.serve.choices import choices
from tests.sizes import config_of

CONFIG = config_of(
    max_model_len=256, max_num_seqs=4, max_num_batched_tokens=16, n_blocks=40, block_size=16
)
SIZES = EngineSizes(101, 256, 4, 16, 40, 16)
PARAMS = TokenParams(seed=1, max_tokens=12, temperature=0.7, n_logprobs=1)


def engine(executor: FakeExecutor | None = None, *, overlap: bool = False) -> Engine:
    return Engine(executor or FakeExecutor(SIZES), Scheduler(CONFIG), overlap=overlap)


def request(i: int, n_prompt: int = 40, **changes: object) -> EngineRequest:
    prompt = tuple((i * 7 + j * 3) % 101 for j in range(n_prompt))
    return EngineRequest(i, prompt, replace(PARAMS, seed=i, **changes))


def drain(made: Engine) -> dict[int, list[TokenEvent]]:
    events: dict[int, list[TokenEvent]] = {}
    while made.has_work:
        collect(events, made.step().events)
        made.check()
    return events


def collect(events: dict[int, list[TokenEvent]], news: Iterable[TokenEvent]) -> None:
    for event in news:
        events.setdefault(event.id, []).append(event)


def tokens(events: Iterable[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.tokens]


def solo(one: EngineRequest) -> list[TokenEvent]:
    made = engine()
    made.add(one)
    return drain(made)[one.id]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("n_steps", [0, 1, 2, 3, 6, 12, 40], ids=lambda n: f"after {n} steps")
def test_a_cancelled_request_gives_everything_back_within_a_step(
    n_steps: int, overlap: bool
) -> None:
    """Steps 1 to 3 are chunks of its prompt, then it decodes; after 40 it has ended."""
    made, mate = engine(overlap=overlap), request(2)
    made.add(request(1))
    made.add(mate)
    events: dict[int, list[TokenEvent]] = {}
    for _ in range(n_steps):
        collect(events, made.step().events)
    was_running = made.cancel(1)
    assert was_running == (n_steps < 40)
    collect(events, made.step().events)
    made.check()
    assert not made.cancel(1)
    collect(events, [event for news in drain(made).values() for event in news])
    assert events[1][-1].finish == ("cancelled" if was_running else "length")
    assert tokens(events[1]) == tokens(solo(request(1)))[: len(tokens(events[1]))]
    assert tokens(events[2]) == tokens(solo(mate))
    stats = made.stats()
    assert stats.blocks_free == stats.blocks_total
    assert stats.n_cancelled == was_running
    made.close()


def test_a_cancelled_waiting_request_never_runs() -> None:
    made = engine()
    for i in range(6):
        made.add(request(i, 3))
    made.step()
    assert made.cancel(5)
    assert [event.finish for event in drain(made)[5]] == ["cancelled"]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_non_finite_logits_fail_one_request_alone(at: int, overlap: bool) -> None:
    requests = [request(i, 20 + i) for i in range(4)]
    made = engine(FakeExecutor(SIZES, nonfinite={2: at}), overlap=overlap)
    made.submit(requests)
    events = drain(made)
    for one in requests:
        alone = solo(one)
        if one.id == 2:
            assert (events[2][-1].finish, events[2][-1].error_code) == ("error", "model_numerics")
            assert tokens(events[2]) == tokens(alone)[:at]
        else:
            assert events[one.id] == alone
    assert made.stats().n_failed == 1
    made.close()


def test_a_request_that_can_never_run_gets_an_error_event() -> None:
    made = engine()
    made.submit([request(1, 300), request(2, 5)])
    events = drain(made)
    assert (events[1][0].finish, events[1][0].error_code) == ("error", "context_length_exceeded")
    assert events[1][0].error == "the prompt has 300 tokens, the limit is 256: shorten it"
    assert events[2] == solo(request(2, 5))


class Dying(FakeExecutor):
    """Fails in its fourth step."""

    def run(self, plan: StepPlan) -> StepResult:
        if plan.step == 3:
            raise MemoryError("out of arena")
        return super().run(plan)


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_a_failing_executor_is_a_clear_fault(overlap: bool) -> None:
    made = engine(Dying(SIZES), overlap=overlap)
    made.add(request(1))
    with pytest.raises(EngineFault, match=r"step 3 of 1 rows and 1 tokens failed: MemoryError"):
        drain(made)
    made.close()


def test_steps_without_work_compute_nothing() -> None:
    for overlap in (False, True):
        made = engine(overlap=overlap)
        assert made.step().events == ()
        assert made.stats().step == 0
        made.close()


def _virtual(plan: StepPlan) -> float:
    return 0.001 * plan.n_tokens


def test_the_step_time_is_the_executors() -> None:
    seconds: Callable[[StepPlan], float] = _virtual
    made = engine(FakeExecutor(SIZES, seconds=seconds))
    made.add(request(1))
    assert made.step().stats.step_seconds == pytest.approx(0.016)
    assert made.step().stats.step_seconds == pytest.approx(0.032), "a counter, of all steps"


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("act", ["add", "cancel", "commit", "plan"])
def test_what_is_cut_short_only_closes(
    act: str, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(overlap=overlap)
    made.add(request(1))
    made.step()
    plain = getattr(Scheduler, act)

    def cut(*args: object) -> object:
        plain(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Scheduler, act, cut)
        made.add(request(2))
        made.cancel(2)
        made.step()
    assert not made.is_sound
    uses: list[Callable[[], object]] = [
        made.step,
        made.reset_prefix_cache,
        lambda: made.add(request(3)),
        lambda: made.cancel(1),
        lambda: made.release(1),
    ]
    for use in uses:
        with pytest.raises(EngineFault, match="cannot go on: KeyboardInterrupt"):
            use()
    made.close()


def test_a_refusal_leaves_the_engine_sound_and_close_does_not() -> None:
    made = engine()
    with pytest.raises(RequestError):
        made.add(request(1, n_prompt=1000))
    assert made.is_sound
    made.close()
    made.close()
    with pytest.raises(EngineFault, match="it is closed"):
        made.step()


class Word(tuple[int, ...]):
    """Counts how often its ids are looked at."""

    looks: list[int]

    def __iter__(self) -> Iterator[int]:
        self.looks.append(1)
        return super().__iter__()


def test_choices_have_the_words_checked_once_that_they_share() -> None:
    made, word, wrong = engine(), Word((5, 6)), Word((5, 101))
    word.looks, wrong.looks = [], []
    first = request(1, bad_words=(word,))
    made.submit(choices(first, 3))
    assert len(word.looks) == 1
    for i in (4, 5):  # what is refused was not found good
        with pytest.raises(RequestError, match="bad_words"):
            made.add(request(i, bad_words=(wrong,)))
    made.add(request(6, bad_words=(word,)))
    assert sorted(drain(made)) == [1, 2, 3, 6]
