"""Forks of a request that drafts, runs or has just ended: they begin with what it has put out so
far, of which the newest may still have to be moved, or be taken in by a state."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from msgspec import structs

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.groups import STATE_WINDOW, KVGroup
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.request import EngineRequest
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Proposer
from kvasir.speculate.executor import ExecutorProposer
from tests.answers import Answer, answer_of
from tests.forms import n_of
from tests.oracle_drafts import OracleProposer
from tests.sizes import changed, config_of

VOCAB, SIZE, K, LONGEST = 61, 8, 6, 32


@dataclass(frozen=True, slots=True)
class Way:
    """How the parent drafts, and what layers keep."""

    name: str
    siblings: int = 0
    """Wrong ones before each right token: drafts are trees."""
    by_executor: bool = False
    group: KVGroup | None = None


STATES = KVGroup(60, STATE_WINDOW, 8, SIZE, K)
WAYS = (
    Way("trees", siblings=1),
    Way("chains over states", group=STATES),
    Way("drafts of the executor", by_executor=True),
)


def config(way: Way, n_tokens: int) -> SchedulerConfig:
    windows = () if way.group is None else (way.group,)
    return config_of(
        96, 3, n_tokens, 100, SIZE, vocab_size=VOCAB, windows=windows, max_draft_tokens=K
    )


def alone(way: Way, request: EngineRequest) -> Answer:
    """Without drafts and forks."""
    plain = changed(config(way, 64), max_draft_tokens=0)
    if way.group is not None:
        plain = changed(plain, windows=(replace(way.group, drafts=0),))
    engine = Engine(FakeExecutor(plain.sizes), Scheduler(plain))
    engine.add(structs.replace(request, parent=-1))
    events: list[TokenEvent] = []
    while engine.has_work:
        events += engine.step().events
    engine.close()
    return answer_of(events)


def proposer(way: Way, answers: Mapping[int, Answer]) -> Proposer:
    known = {i: answer.tokens for i, answer in answers.items()}
    return (
        ExecutorProposer()
        if way.by_executor
        else OracleProposer(known, VOCAB, n_siblings=way.siblings)
    )


def together(
    way: Way, rng: random.Random, expected: Mapping[int, Answer], requests: Sequence[EngineRequest]
) -> int:
    """Tokens that forks began with. They come while their parent, the first, runs, or later."""
    own = config(way, rng.choice((8, 64)))
    executor = FakeExecutor(own.sizes, misses=3 if way.by_executor else None)
    scheduler = Scheduler(own, proposer(way, expected))
    engine = Engine(executor, scheduler, overlap=rng.random() < 0.7)
    events: dict[int, list[TokenEvent]] = {}
    parent, *waiting = requests
    engine.add(parent)
    while engine.has_work or waiting:
        if waiting and rng.random() < 0.25:
            engine.add(waiting.pop())
        for event in engine.step().events:
            events.setdefault(event.id, []).append(event)
        engine.check()
    n_shared = engine.stats().prefix_hits
    engine.close()
    assert {i: answer_of(found) for i, found in events.items()} == expected
    return n_shared


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_fork_begins_with_what_is_in_its_place(way: Way) -> None:
    n_shared = 0
    for seed in range(n_of(12, 200)):
        rng = random.Random(seed)
        prompt = tuple(rng.choices(range(VOCAB), k=rng.randint(1, 20)))
        params = TokenParams(seed=seed, max_tokens=LONGEST)
        requests = [EngineRequest(0, prompt, params, hold_seconds=rng.choice((0.0, 60.0)))]
        answers = {0: alone(way, requests[0])}
        for i in (1, 2):
            outputs = answers[0].tokens[: rng.randint(1, LONGEST - 1)]
            own = (*prompt, *outputs, *rng.choices(range(VOCAB), k=i))
            params = TokenParams(seed=seed + i, max_tokens=4)
            requests.append(EngineRequest(i, own, params, parent=0))
            answers[i] = alone(way, requests[-1])
        n_shared += together(way, rng, answers, requests)
    assert n_shared > 100
