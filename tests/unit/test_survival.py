"""What the supervisor decides: who is to blame, when to give up, what hangs, what is replayed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from kvasir.core.messages import DiskStats, DrafterStats, EngineStats, Ready
from kvasir.core.params import TokenParams
from kvasir.core.request import Context, EngineRequest, Standing
from kvasir.serve.death import is_fault
from kvasir.serve.engine_counts import EngineCounts
from kvasir.serve.heartbeat import MAX_IDS, Heartbeat, Progress, new_memory
from kvasir.serve.ledger import Ledger
from kvasir.serve.messages import Submit
from kvasir.serve.replay import Live, Replay
from kvasir.serve.streams import EventStream
from kvasir.serve.suspects import BAN_SECONDS, MAX_BANS, MAX_DEATHS, Bans, Deaths, Suspects
from kvasir.serve.tokenlog import ReplayError, open_log
from kvasir.serve.totals import COUNTERS, DISK_COUNTERS, at_rest, total
from kvasir.serve.watchdog import MIN_SECONDS, TICK_SECONDS, TIMES_EXPECTED, Watchdog

PARAMS = TokenParams(seed=1, max_tokens=9)
READY = Ready("m", 101, 256, 64, 16, "numerics", "root", 4)


@dataclass
class Owner:
    id: int


@pytest.fixture
def both() -> Iterator[tuple[Heartbeat, Heartbeat]]:
    """Who writes and who reads."""
    fd = new_memory()
    writer, reader = Heartbeat(fd), Heartbeat(fd)
    os.close(fd)
    yield writer, reader
    writer.close()
    reader.close()


def owners(*ids: int) -> list[Owner]:
    return [Owner(i) for i in ids]


def test_a_heartbeat_shows_the_plans_under_way(both: tuple[Heartbeat, Heartbeat]) -> None:
    writer, reader = both
    assert (reader.progress, reader.ids, reader.expected) == (Progress(0, 0, 0), frozenset(), 0.0)
    writer.turn()
    writer.launched(owners(1, 2), 0.5)
    writer.launched(owners(2, 3), 0.25, 7.0)
    assert reader.progress == Progress(1, 0, 2)
    assert (reader.ids, reader.expected, reader.towers) == ({1, 2, 3}, 0.5, 0.0)
    writer.done()
    assert (reader.ids, reader.expected, reader.towers) == ({2, 3}, 0.25, 7.0)
    writer.launched(owners(3), 0.125)
    writer.done()
    assert (reader.ids, reader.expected, reader.towers) == ({3}, 0.125, 0.0)
    writer.done()
    assert (reader.ids, reader.expected) == (frozenset(), 0.0)


def test_a_heartbeat_follows_rows_that_stay_and_rows_that_change(
    both: tuple[Heartbeat, Heartbeat],
) -> None:
    writer, reader = both
    same, other = owners(*range(64)), owners(7, 8)
    for rows in (same, same, same, other, same, other, other):
        writer.launched(list(rows), 0.1)
        assert reader.ids == {owner.id for owner in rows}
        writer.done()
    writer.launched(owners(*range(2 * MAX_IDS)), 0.1)
    assert reader.ids == set(range(MAX_IDS))


def test_suspects_pass_one_at_a_time_and_the_second_crash_names_the_poison() -> None:
    suspects = Suspects()
    assert suspects.died({5, 3, 9}, is_fault=True) is None
    assert suspects.waiting == [3, 5, 9]
    suspects.begin(3)
    suspects.passed()
    suspects.begin(5)
    assert suspects.died({3, 5}, {3, 5}, is_fault=True) == 5
    assert suspects.waiting == []


def test_nobody_is_blamed_who_was_not_alone() -> None:
    suspects = Suspects()
    suspects.died({1, 2}, is_fault=True)
    suspects.begin(1)
    assert suspects.died({1, 7, 8}, {8}, is_fault=True) is None
    assert suspects.waiting == [1, 7]
    suspects.begin(1)
    suspects.passed()
    suspects.begin(7)
    assert suspects.died({1, 7, 8}, {1, 8}, is_fault=True) == 7


def test_a_crash_without_the_one_on_trial_makes_others_suspects() -> None:
    suspects = Suspects()
    suspects.died({1, 2}, is_fault=True)
    suspects.begin(1)
    assert suspects.died({8}, {8}, is_fault=True) is None
    assert suspects.waiting == [8]


def test_a_kill_from_outside_blames_nobody_and_the_trials_go_on() -> None:
    suspects = Suspects()
    assert suspects.died({1, 2}, is_fault=False) is None
    assert suspects.waiting == []
    suspects.died({1, 2}, is_fault=True)
    suspects.begin(1)
    assert suspects.died({1}, is_fault=False) is None
    assert (suspects.waiting, suspects.on_trial) == ([1, 2], None)


def test_one_that_has_left_is_no_suspect() -> None:
    suspects = Suspects()
    suspects.died({1, 2}, is_fault=True)
    suspects.begin(1)
    suspects.passed()
    assert suspects.waiting == [2]
    suspects.passed()
    assert suspects.waiting == [2]


def test_signals_that_only_others_send() -> None:
    assert not is_fault(-9, 10**9)
    assert is_fault(-9, -1), "the system killed it for want of memory"
    assert is_fault(-11, 0) and is_fault(1, 0) and is_fault(0, 0)


def test_five_deaths_without_progress_are_enough() -> None:
    deaths = Deaths()
    assert not any(deaths.died(progressed=False, seconds=1) for _ in range(MAX_DEATHS - 1))
    assert not deaths.died(progressed=True, seconds=1)
    assert not deaths.died(progressed=False, seconds=61), "it lived for long"
    pauses = []
    for _ in range(MAX_DEATHS - 2):
        assert not deaths.died(progressed=False, seconds=0)
        pauses.append(round(deaths.pause, 3))
    assert pauses == [0.1, 0.3, 0.7]
    assert deaths.died(progressed=False, seconds=0)


def test_the_first_death_is_answered_at_once() -> None:
    deaths = Deaths()
    deaths.died(progressed=True, seconds=5)
    assert deaths.pause == 0


def request(request_id: int = 1, **changes: object) -> EngineRequest:
    return structs.replace(EngineRequest(request_id, (1, 2, 3), PARAMS), **changes)


def test_a_ban_is_of_a_tenants_request_and_ends() -> None:
    now = 100.0
    bans = Bans(lambda: now)
    bans.add(request(1))
    params = structs.replace(PARAMS, seed=99)
    later = Standing(ttft_by=5.0, answer_by=9.0, priority_class="batch", priority=3)
    assert bans.left(request(7, params=params, standing=later)) == BAN_SECONDS
    others = (
        request(standing=Standing(tenant="other")),
        request(prompt=(1, 2)),
        request(params=structs.replace(PARAMS, max_tokens=8)),
        request(context=Context("salt")),
    )
    assert all(bans.left(other) == 0 for other in others)
    now = 400.0
    assert bans.left(request()) == BAN_SECONDS - 300
    now = 700.0
    assert bans.left(request()) == 0


def test_bans_are_bounded() -> None:
    bans = Bans(lambda: 0.0)
    for i in range(MAX_BANS + 5):
        bans.add(request(prompt=(i,)))
    assert len(bans._until) == MAX_BANS
    assert bans.left(request(prompt=(4,))) == 0 < bans.left(request(prompt=(5,)))


@dataclass
class Heart:
    """One that a test beats."""

    expected: float = 0.0
    progress: Progress = field(default_factory=lambda: Progress(0, 0, 0))

    n_faults: int = 0
    waits: float = 0.0
    towers: float = 0.0

    def waited(self) -> float:
        return self.waits

    def beat(self) -> None:
        self.progress = self.progress._replace(turns=self.progress.turns + 1)


def seconds_until_it_bites(dog: Watchdog, start: float = 0.0, most: float = 1000.0) -> float:
    now = start
    while not dog.look(now, has_work=True):
        now += TICK_SECONDS
        if now - start > most:
            return float("inf")
    return now - start


@pytest.mark.parametrize("expected", [0.0, 0.1, 0.5, 3.0])
def test_a_hang_is_seen_at_its_limit(expected: float) -> None:
    limit = max(MIN_SECONDS, TIMES_EXPECTED * expected)
    heart = Heart(expected=expected)
    seconds = seconds_until_it_bites(Watchdog(heart, heart))
    assert limit < seconds <= limit + 1


def test_a_tower_has_its_time_once() -> None:
    heart = Heart(expected=0.5, towers=300.0)
    assert 310.0 < seconds_until_it_bites(Watchdog(heart, heart)) <= 311.0


def test_whoever_goes_on_or_has_nothing_to_do_does_not_hang() -> None:
    heart = Heart()
    dog = Watchdog(heart, heart)
    for i in range(1000):
        assert not dog.look(i * TICK_SECONDS, has_work=False)
    for i in range(1000, 2000):
        if i % 19 == 0:
            heart.beat()
        assert not dog.look(i * TICK_SECONDS, has_work=True)
    assert seconds_until_it_bites(dog, 2000 * TICK_SECONDS) + 19 * TICK_SECONDS > MIN_SECONDS


def test_a_clock_that_jumps_and_a_stopped_server_make_no_hang() -> None:
    heart = Heart()
    dog = Watchdog(heart, heart)
    now = 0.0
    for jump in (3600.0, -7200.0, 50.0, 1e9, -1e9):
        heart.beat()
        for _ in range(8):
            assert not dog.look(now, has_work=True)
            now += TICK_SECONDS
        now += jump
        assert not dog.look(now, has_work=True)


def test_waiting_for_a_cpu_does_not_count() -> None:
    heart = Heart(waits=0.9 * TICK_SECONDS)
    assert seconds_until_it_bites(Watchdog(heart, heart)) > 9 * MIN_SECONDS
    heart.waits = TICK_SECONDS
    assert seconds_until_it_bites(Watchdog(heart, heart)) == float("inf")


def test_reading_pages_from_disk_is_going_on() -> None:
    heart = Heart()
    dog = Watchdog(heart, heart)
    for i in range(1000):
        heart.n_faults += 1
        assert not dog.look(i * TICK_SECONDS, has_work=True)


def live(choice: EngineRequest, emitted: tuple[int, ...] = ()) -> Live:
    log = open_log(choice, key_root="root", numerics_id="numerics")
    log.emitted.extend(emitted)
    return Live(EventStream(choice.id, 1, 9), log)


def test_what_is_replayed_goes_on_and_shares_a_prompt_again() -> None:
    """Choice 1 has ended: its forks follow the first of them that is left."""
    held = {i: live(request(i, parent=1), (8, 9)[: i - 2]) for i in (2, 3, 4)}
    replay = Replay(held, READY)
    link: object = object()
    for each in held.values():
        each.link = link  # type: ignore[assignment]
    sent = [replay.request(held[i]) for i in (2, 3, 4)]
    assert [x.parent for x in sent] == [-1, 2, 2]
    assert [x.emitted for x in sent] == [(), (8,), (8, 9)]
    assert all(x.is_resumed for x in sent)
    whole = Replay({1: live(request(1)), **held}, READY)
    assert [whole.request(held[i]).parent for i in (2, 3, 4)] == [1, 1, 1]


def test_what_no_engine_had_is_new_to_the_next() -> None:
    waiting = live(request())
    assert Replay({1: waiting}, READY).request(waiting) == request()


@pytest.mark.parametrize("change", [{"key_root": "other"}, {"numerics_id": "other"}])
def test_an_engine_of_another_kind_goes_on_with_nothing(change: dict[str, str]) -> None:
    waiting = live(request(), (5,))
    with pytest.raises(ReplayError, match="request 1 ran with"):
        Replay({1: waiting}, structs.replace(READY, **change)).request(waiting)


def test_counters_go_on_and_gauges_begin_again() -> None:
    before = EngineStats(
        **{name: 10 for name in COUNTERS},
        n_running=3,
        n_waiting=4,
        tokens_waiting=5,
        disk=DiskStats(**{name: 7 for name in DISK_COUNTERS}, n_bytes=1),
    )
    rest = at_rest(before)
    assert (rest.n_running, rest.n_waiting, rest.tokens_waiting, rest.step) == (0, 0, 0, 10)
    stats = EngineStats(step=1, output_tokens=2, n_running=1, disk=DiskStats(n_hit=1, n_bytes=9))
    found = total(rest, stats)
    assert (found.step, found.output_tokens, found.n_failed, found.n_running) == (11, 12, 10, 1)
    assert found.disk == DiskStats(7, 7, 7, 7, 9, 8)
    assert total(rest, structs.replace(stats, disk=None)).disk is None
    old, new = DrafterStats("mtp", 1, 5, 3), DrafterStats("suffix", 2, 9, 4)
    rest, stats = (
        structs.replace(x, drafters=own) for x, own in ((rest, (old,)), (stats, (new, old)))
    )
    assert total(rest, stats).drafters == (DrafterStats("mtp", 2, 10, 6), new)


class Heard:
    """A link to an engine process that reads ``most`` requests at a time."""

    def __init__(self, most: int = 99) -> None:
        self.ids: list[int] = []
        self.n_unread: list[int] = [0]
        self._most = most

    @property
    def is_full(self) -> bool:
        return self.n_unread[-1] >= self._most

    async def drain(self) -> None:
        self.n_unread.append(0)

    def send(self, message: object) -> None:
        if isinstance(message, Submit):
            self.ids.append(message.request.id)
            self.n_unread[-1] += 1


def test_what_is_replayed_is_sent_as_fast_as_it_is_read() -> None:
    ledger, link = Ledger(EngineCounts()), Heard(most=3)
    for i in range(1, 9):
        log = open_log(EngineRequest(i, (5,), PARAMS), key_root="root", numerics_id="numerics")
        ledger.live[i] = Live(EventStream(i, 1, 99), log)
    asyncio.run(ledger.resume(link, READY, Suspects()))  # type: ignore[arg-type]
    assert link.ids == list(range(1, 9))
    assert link.n_unread == [3, 3, 2, 0]


def test_suspects_are_sent_one_behind_the_other() -> None:
    """The next when the one before has passed the plan that was fatal and the one behind it: two
    are under way, and what a third gave may not have arrived."""

    async def run() -> list[int]:
        ledger, suspects, link = Ledger(EngineCounts()), Suspects(), Heard()
        for i in (1, 2):
            log = open_log(EngineRequest(i, (5,), PARAMS), key_root="root", numerics_id="numerics")
            ledger.live[i] = Live(EventStream(i, 1, 99), log)
        suspects.died({1, 2}, is_fault=True)
        resuming = asyncio.create_task(ledger.resume(link, READY, suspects))  # type: ignore[arg-type]
        for _ in range(4):
            await asyncio.sleep(0.02)
            assert link.ids == [1]
            ledger.live[1].log.emitted.append(7)
        async with asyncio.timeout(10):
            while link.ids == [1]:
                await asyncio.sleep(0.001)
            ledger.live.clear()
            await resuming
        return link.ids

    assert asyncio.run(run()) == [1, 2]
