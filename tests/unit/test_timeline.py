"""The timeline: what the ring keeps, how a request's life reads, and what a trace shows."""

from __future__ import annotations

import json
import time
from itertools import count

import pytest

from kvasir.cli.trace import chrome_trace, request_text, steps_text
from kvasir.config.resolved import SchedulerConfig
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.serve.served import Served, ServedResponses
from kvasir.timing.records import Span, Story
from kvasir.timing.timeline import Timeline
from tests.sizes import changed, config_of

CONFIG = config_of(
    max_model_len=256,
    max_num_seqs=4,
    max_num_batched_tokens=32,
    n_blocks=40,
    block_size=16,
    enable_prefix_caching=True,
)


def engine(config: SchedulerConfig = CONFIG, timeline: Timeline | None = None) -> Engine:
    """Every look at the clock is a second later; a step takes half of one."""
    ticks = count(1)
    spec = EngineSizes(101, 256, 4, 32, config.sizes.n_blocks, 16)
    clock = timeline or Timeline(lambda: float(next(ticks)))
    executor = FakeExecutor(spec, seconds=lambda plan: 0.5)
    return Engine(executor, Scheduler(config, timeline=clock))


def request(i: int, n_prompt: int, n_outputs: int) -> EngineRequest:
    prompt = tuple((i * 7 + j * 3) % 101 for j in range(n_prompt))
    return EngineRequest(i, prompt, TokenParams(seed=i, max_tokens=n_outputs, temperature=0.0))


def drain(made: Engine) -> None:
    while made.has_work:
        made.step()


def story(made: Engine | Timeline, i: int) -> Story:
    timeline = made if isinstance(made, Timeline) else made.timeline
    found = timeline.story(i)
    assert found is not None
    return found


def shape(found: Story) -> list[tuple[str, int, int]]:
    return [(span.kind, span.tokens, span.steps) for span in found.spans]


def test_a_request_is_explained_from_arrival_to_end() -> None:
    made = engine()
    made.add(request(1, 70, 5))
    drain(made)
    found = story(made, 1)
    assert (found.state, found.n_prompt, found.is_truncated) == ("finished", 70, False)
    assert shape(found) == [
        ("queued", 0, 0),
        ("prefill", 32, 1),
        ("prefill", 32, 1),
        ("prefill", 6, 1),
        ("decode", 4, 4),
        ("finished", 0, 0),
    ]
    assert [span.start for span in found.spans[1:4]] == [0, 32, 64]
    assert found.spans[-1].detail == "length"
    times = [span.at for span in found.spans]
    assert times == sorted(times)
    assert found.spans[0].seconds == 1.0


def test_a_hit_is_shown_with_its_tokens() -> None:
    made = engine()
    made.add(request(1, 70, 2))
    drain(made)
    made.add(EngineRequest(2, request(1, 70, 2).prompt, request(1, 70, 2).params))
    drain(made)
    assert shape(story(made, 2))[:3] == [("queued", 0, 0), ("prefix_hit", 64, 0), ("prefill", 6, 1)]


def test_a_preemption_is_shown_and_the_wait_after_it() -> None:
    made = engine(changed(CONFIG, n_blocks=6, enable_prefix_caching=False))
    for i in (1, 2):
        made.add(request(i, 30, 40))
    drain(made)
    kinds = [span.kind for span in story(made, 2).spans]
    at = kinds.index("preempted")
    assert kinds[at - 1 : at + 3] == ["decode", "preempted", "queued", "prefill"]
    lost = story(made, 2).spans[at].tokens
    assert lost > 30
    assert "preempted" not in [span.kind for span in story(made, 1).spans]
    steps = sum(span.steps for span in story(made, 1).spans if span.kind == "decode")
    assert steps == 39


def test_what_came_from_disk_is_shown_as_a_part_of_the_hit() -> None:
    timeline = Timeline(iter(range(100)).__next__)
    timeline.queued(1, 40)
    timeline.mark(1, "started", 32)
    timeline.mark(1, "swapped_in", 16)
    found = timeline.story(1)
    assert found is not None
    assert shape(found) == [("queued", 0, 0), ("prefix_hit", 32, 0), ("swapped_in", 16, 0)]
    assert found.state == "running"


def test_state_of_waiting_running_cancelled_and_unknown() -> None:
    made = engine(changed(CONFIG, max_num_seqs=1))
    made.add(request(1, 10, 5))
    made.add(request(2, 10, 5))
    made.step()
    assert (story(made, 1).state, story(made, 2).state) == ("running", "waiting")
    assert shape(story(made, 2)) == []
    made.cancel(2)
    assert story(made, 2).spans[-1].detail == "cancelled"
    assert made.timeline.story(3) is None


def test_drafted_rows_are_decode_steps() -> None:
    timeline = Timeline(iter(range(100)).__next__)
    timeline.queued(1, 4)
    timeline.mark(1, "started")
    draft = Row(0, 4, (5, 6, 7), n_logits=3, out_index=1)
    timeline.step(StepPlan(0, (draft,)), [1], StepResult(()), n_waiting=0, blocks_free=3)
    found = timeline.story(1)
    assert found is not None
    assert shape(found) == [("queued", 0, 0), ("decode", 3, 1)]
    assert timeline.recent(1)[0].drafts == ((1, 3),)


def fill(timeline: Timeline, n_steps: int, ids: tuple[int, ...]) -> None:
    rows = tuple(Row(slot, 9, (5,), out_index=2) for slot in range(len(ids)))
    for step in range(n_steps):
        timeline.step(StepPlan(step, rows), ids, StepResult(()), n_waiting=0, blocks_free=3)


def test_the_ring_is_bounded_in_steps_and_in_entries() -> None:
    timeline = Timeline(max_steps=10, max_entries=100)
    fill(timeline, 25, (1, 2, 3))
    assert len(timeline) == 10
    assert [record.step for record in timeline.recent(3)] == [22, 23, 24]
    for i in range(20):
        fill(timeline, 1, tuple(range(i, i + 24)))
    assert len(timeline) == 4
    assert timeline.n_entries == 100


def test_steps_with_the_same_requests_share_their_ids() -> None:
    timeline = Timeline()
    fill(timeline, 100, tuple(range(64)))
    assert timeline.n_entries == 164
    assert len({id(record.decodes) for record in timeline.recent(100)}) == 1


def test_each_step_is_looked_at_once_however_many_choices_are_asked_for() -> None:
    """1,024 choices of 300 tokens, 64 at a time: 2.6 s when every step was looked at for each of
    them, 0.1 s since."""
    timeline = Timeline()
    choices = range(1024)
    for i in choices:
        timeline.queued(i, 4)
    for first in range(0, 1024, 64):
        for i in range(first, first + 64):
            timeline.mark(i, "started")
        for joined in range(300):
            last = min(first + 64, first + joined + 1)
            fill(timeline, 1, tuple(range(first, last)))
        for i in range(first, first + 64):
            timeline.finished(i, "length")
    began = time.thread_time()
    n_pieces = sum(1 for _ in timeline.telling(choices))
    assert time.thread_time() - began < 1
    assert n_pieces < timeline.n_entries + 4 * len(choices)
    assert [span.steps for span in story(timeline, 900).spans] == [0, 296, 0]


def test_what_the_ring_forgot_is_said() -> None:
    timeline = Timeline(max_steps=5, max_finished=2)
    timeline.queued(1, 4)
    timeline.mark(1, "started")
    fill(timeline, 8, (1,))
    found = timeline.story(1)
    assert found is not None
    assert found.is_truncated
    assert found.spans[-1].steps == 5
    for i in (1, 2, 3):
        timeline.queued(i, 4) if i > 1 else None
        timeline.finished(i, "stop")
    assert timeline.story(1) is None
    assert timeline.story(3) is not None


def test_a_response_is_known_to_its_owner_only_and_not_for_ever() -> None:
    served = ServedResponses(limit=2)
    served.add(Served("cmpl-a", 1, 2, b"me", "m"))
    served.add(Served("cmpl-b", 3, 1, b"you", "m"))
    assert served.get("cmpl-a", b"you") is None
    assert served.get("cmpl-b", b"you") == Served("cmpl-b", 3, 1, b"you", "m")
    assert [served.names(b"me", "m").name(i) for i in range(5)] == [
        None,
        "cmpl-a/0",
        "cmpl-a/1",
        None,
        None,
    ]
    served.add(Served("cmpl-c", 4, 1, b"me", "m"))
    assert served.get("cmpl-a", b"me") is None
    assert served.names(b"me", "m").name(4) == "cmpl-c"


STEPS = {
    "steps": [
        {
            "step": n,
            "at": 100.0 + n,
            "seconds": 0.5,
            "rows": 2,
            "tokens": 1 + chunk,
            "decodes": 1,
            "waiting": 0,
            "blocks_free": 7,
            "requests": [
                {"id": "cmpl-a", "kind": "decode", "tokens": 1},
                *([{"id": "cmpl-b", "kind": "prefill", "tokens": 8, "start": 0}] if chunk else []),
            ],
        }
        for n, chunk in ((0, 0), (1, 0), (2, 8))
    ]
}


def test_a_trace_has_steps_and_requests_as_tracks() -> None:
    trace = chrome_trace(STEPS)
    assert json.loads(json.dumps(trace)) == trace
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in slices if event["pid"] == 1]
    assert [(event["ts"], event["dur"]) for event in steps] == [
        (0.0, 5e5),
        (1e6, 5e5),
        (2e6, 5e5),
    ]
    requests = [event for event in slices if event["pid"] == 2]
    assert [(event["name"], event["tid"], event["ts"], event["dur"]) for event in requests] == [
        ("decode", 1, 0.0, 2.5e6),
        ("prefill", 2, 2e6, 5e5),
    ]
    assert requests[0]["args"] == {"tokens": 3, "steps": 3}
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"][-2:]}
    assert names == {1: "cmpl-a", 2: "cmpl-b"}
    assert chrome_trace({"steps": []})["traceEvents"][0]["ph"] == "M"


def test_texts_name_chunks_and_spans() -> None:
    lines = steps_text(STEPS).splitlines()
    assert len(lines) == 4
    assert lines[3].split() == ["2", "500.000", "2", "1", "9", "0", "cmpl-b", "0+8"]
    span = Span("prefill", 0.25, 0.5, tokens=8, step=3, rows=2)
    choice = {"index": 0, "state": "running", "is_truncated": True}
    text = request_text({"id": "cmpl-b", "choices": [{**choice, "spans": [_builtins(span)]}]})
    assert "250.000    500.000 prefill     8 tokens from 0, step 3 of 2 rows" in text
    assert "forgotten" in text
    off = {"kind": "undrafted", "at": 0.5, "steps": 12, "detail": "unpaid"}
    text = request_text({"id": "cmpl-b", "choices": [{**choice, "spans": [off]}]})
    assert text.endswith("undrafted   12 steps: unpaid\n")


def _builtins(span: Span) -> dict[str, object]:
    return {
        name: getattr(span, name) for name in ("kind", "at", "seconds", "tokens", "step", "rows")
    }


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_every_step_is_recorded_in_both_loops(overlap: bool) -> None:
    scheduler = Scheduler(CONFIG)
    spec = EngineSizes(101, 256, 4, 32, 40, 16)
    made = Engine(FakeExecutor(spec), scheduler, overlap=overlap)
    for i in range(5):
        made.add(request(i, 20 + i, 6))
    drain(made)
    records = scheduler.timeline.recent(1000)
    assert [record.step for record in records] == list(range(made.stats().step))
    for i in range(5):
        found = story(made, i)
        assert sum(s.tokens for s in found.spans if s.kind in ("prefix_hit", "prefill")) == 20 + i
        assert sum(s.steps for s in found.spans if s.kind == "decode") == 5
    made.close()
