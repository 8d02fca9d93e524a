"""Bounds of the queue, and after which time to come again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from kvasir.core.errors import CapacityError, RequestError
from kvasir.core.messages import EngineStats, Ready
from kvasir.core.params import TokenParams
from kvasir.core.request import Standing
from kvasir.serve.admission import Admission, wait_for
from kvasir.serve.client import AsyncClient
from kvasir.serve.link import Link
from kvasir.serve.numbered import COMMON, numbered
from kvasir.serve.streams import EventStream
from kvasir.serve.suspects import Suspects
from kvasir.serve.wanted import Size
from tests.unit.test_deadlines import World


def full(**changes: float) -> EngineStats:
    values = {
        "n_running": 4, "n_waiting": 10, "tokens_waiting": 1000, "n_received": 14,
        "tokens_received": 1400, "first_wait": 2.0, "last_wait": 20.0,
    }  # fmt: skip
    return EngineStats(**(values | changes))  # type: ignore[arg-type]


def admission(max_requests: int = 10, max_tokens: int = 10_000) -> Admission:
    return Admission(max_requests, max_tokens, n_sent=14, tokens_sent=1400)


def test_what_fits_is_taken() -> None:
    admission(12).check(full(), 4, 2, 100)


def test_a_full_queue_is_refused_with_sizes_and_remedy() -> None:
    with pytest.raises(CapacityError) as caught:
        admission().check(full(), 4, 1, 100)
    error = caught.value
    assert error.message == (
        "10 choices wait and 1 more are asked for, the queue holds 10: "
        "try again in about 2 s, or raise --max-queued-requests"
    )
    assert (error.code, error.status, error.retry_after) == ("queue_full", 429, 2.0)


def test_more_places_take_longer() -> None:
    with pytest.raises(CapacityError) as caught:
        admission().check(full(), 4, 10, 100)
    assert caught.value.retry_after == 20.0
    assert wait_for(1, 1, full()) == 2.0
    assert wait_for(99, 10, full()) == 20.0


def test_prompt_tokens_are_bounded_too() -> None:
    with pytest.raises(CapacityError) as caught:
        admission(100, 1200).check(full(), 4, 1, 700)
    assert caught.value.message.startswith(
        "1000 prompt tokens wait and 700 more are asked for, the queue holds 1200: try again in"
    )
    assert caught.value.retry_after == pytest.approx(2 + 4 / 9 * 18)


def test_who_has_few_finds_an_eighth_more() -> None:
    bound = admission(10, 1000)
    assert bound.is_few(2, 125)
    assert not bound.is_few(3, 125)
    assert not bound.is_few(2, 126)
    bound.check(full(), 4, 2, 125, has_few=True)
    with pytest.raises(CapacityError, match=r"10 choices wait and 3 more .* holds 12:"):
        bound.check(full(), 4, 3, 125, has_few=True)
    with pytest.raises(CapacityError, match=r"1000 prompt tokens wait and 126 more .* holds 1125:"):
        bound.check(full(), 4, 2, 126, has_few=True)
    with pytest.raises(CapacityError, match="1 more are asked for, the queue holds 10:"):
        bound.check(full(), 4, 1, 1)


def test_what_starts_at_once_is_no_part_of_the_queue() -> None:
    empty = EngineStats(n_running=1, n_received=14, tokens_received=1400)
    taken = admission(1, 10)
    taken.check(empty, 4, 4, 10**6)
    with pytest.raises(CapacityError):
        taken.check(empty, 4, 5, 1)
    taken.sent(3, 600)
    assert taken.queued(empty, 4) == (0, 0)
    with pytest.raises(CapacityError, match="0 choices wait and 2 more"):
        taken.check(empty, 4, 2, 700)
    taken.check(empty, 4, 1, 700)
    taken.sent(1, 700)
    assert taken.queued(empty, 4) == (1, 1300)
    with pytest.raises(CapacityError):
        taken.check(empty, 4, 1, 1)


def test_the_largest_request_that_is_taken_at_all_is_taken_when_idle() -> None:
    bound = Admission(10, 1200)
    limits = bound.limits(n_slots=4, max_model_len=4096)
    assert (limits.n_choices, limits.n_tokens) == (14, 4096)
    limits.check(7, 2, 4096)
    bound.check(EngineStats(), 4, 14, 4096)
    with pytest.raises(CapacityError, match="0 choices wait and 15 more"):
        bound.check(EngineStats(), 4, 15, 1)
    with pytest.raises(CapacityError, match=r"10 choices wait and 14 more"):
        admission().check(full(), 4, 14, 4096)


@pytest.mark.parametrize(
    ("asked", "param", "said"),
    [
        ((1, 15), "n", "1 prompts with n = 15 are 15 choices, this server takes at most 14"),
        ((8, 2), "prompt", "8 prompts with n = 2 are 16 choices, this server takes at most 14"),
        ((3, 1, 4097), "prompt", "the prompts hold 4097 tokens, this server takes at most 4096"),
    ],
)
def test_what_could_never_be_served_is_a_400(asked: tuple[int, ...], param: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        Admission(10, 1200).limits(n_slots=4, max_model_len=4096).check(*asked)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert "raise --max-queued-" in caught.value.message


def test_retry_after_is_within_a_factor_of_two_of_the_truth() -> None:
    world = World(n_slots=4, n_blocks=2000)
    bound = Admission(8, 10**6)
    n_checked = 0
    for i in range(40):
        stats = world.scheduler.stats()
        try:
            bound.check(stats, 4, 1, 30)
        except CapacityError as error:
            assert error.retry_after is not None
            refused_at = world.now
            while bound.queued(world.scheduler.stats(), 4)[0] >= 8:
                world.step()
            truth = world.now - refused_at
            if truth > 0.5:
                assert truth / 2 <= error.retry_after <= 2 * truth
                n_checked += 1
        world.add(i, 30, 100 + 17 * i % 200)
        bound.sent(1, 30)
        if i % 5 == 4:
            world.step()
    assert n_checked >= 10


READY = Ready("m", 101, 256, 64, 16, "test", "root", 4)


@asynccontextmanager
async def client_of(
    max_requests: int = 9, max_queued_requests: int = 999, max_queued_tokens: int = 9999
) -> AsyncIterator[AsyncClient]:
    """Of an engine that is ready and says nothing."""
    ours, theirs = socket.socketpair()
    client = AsyncClient(
        max_requests=max_requests,
        stream_buffer=9,
        max_queued_requests=max_queued_requests,
        max_queued_tokens=max_queued_tokens,
    )
    link = await Link.open(ours)
    await client.resume(link, READY, Suspects())
    yield client
    theirs.close()
    link.close()


def test_who_filled_the_queue_keeps_nobody_else_out() -> None:
    """Another user, or the same one in another class, is taken beyond the bounds, up to an eighth
    of them: of choices, prompt tokens and requests."""

    async def run() -> None:
        async with client_of(max_requests=8, max_queued_requests=16) as client:
            one, other = Standing("batch", "one"), Standing(tenant="other")
            prompts = [((1, 2, 3), TokenParams(seed=1, max_tokens=4))]
            await client.submit(prompts, READY.max_num_seqs + 16, standing=one)
            with pytest.raises(CapacityError, match=r"16 choices wait and 1 more .* holds 16:"):
                await client.submit(prompts, 1, standing=one)
            with pytest.raises(CapacityError, match=r"16 choices wait and 3 more .* holds 16:"):
                await client.submit(prompts, 3, standing=other)
            await client.submit(prompts, 2, standing=other)
            with pytest.raises(CapacityError, match=r"18 choices wait and 1 more .* holds 16:"):
                await client.submit(prompts, 1, standing=other)
            with pytest.raises(CapacityError, match=r"18 choices wait and 1 more .* holds 18:"):
                await client.submit(prompts, 1, standing=Standing(tenant="one"))

    asyncio.run(run())


def test_prompts_of_all_choices_count_and_one_beyond_the_queue_keeps_nobody_else_out() -> None:
    """Each choice waits with its prompt. A request of more than the queue holds is taken while
    nobody waits, and who has few finds an eighth more than what it holds."""

    async def run() -> None:
        async with client_of(max_queued_tokens=160) as client:
            one, other = Standing(tenant="one"), Standing(tenant="other")
            params = TokenParams(seed=1, max_tokens=4)
            prompts = [(tuple(range(10)), params)]
            n = READY.max_num_seqs + 30
            await client.submit(prompts, n, standing=one)
            with pytest.raises(CapacityError, match=r"prompt tokens wait and 20 more"):
                await client.submit(prompts, 2, standing=one)
            assert n * 10 > 160 + 20
            await client.submit(prompts, 2, standing=other)
            with pytest.raises(CapacityError, match=r"holds 160:"):
                await client.submit(prompts, 1, standing=other)

    asyncio.run(run())


def test_who_sends_and_leaves_has_not_few() -> None:
    """Before the engine has received what was sent, its places are taken; then they are free."""

    async def run() -> None:
        async with client_of(max_requests=99, max_queued_requests=16) as client:
            one, other = Standing(tenant="one"), Standing(tenant="other")
            prompts = [((1, 2, 3), TokenParams(seed=1, max_tokens=4))]
            for _ in range(READY.max_num_seqs + 16):
                client.release(await client.submit(prompts, 1, standing=one))
            with pytest.raises(CapacityError, match=r"16 choices wait and 1 more .* holds 16:"):
                await client.submit(prompts, 1, standing=one)
            await client.submit(prompts, 1, standing=other)
            n_all = READY.max_num_seqs + 17
            client.ledger.stats = structs.replace(client.stats, n_received=n_all)
            assert client._departed.of(one.owner, client.stats.n_received) == (0, 0)
            await client.submit(prompts, 1, standing=one)

    asyncio.run(run())


def test_one_beyond_the_queue_that_runs_leaves_no_more_room_in_it() -> None:
    async def run() -> None:
        async with client_of(max_requests=99, max_queued_tokens=160) as client:
            params, n = TokenParams(seed=1, max_tokens=4), READY.max_num_seqs
            await client.submit([(tuple(range(100)), params)], n, standing=Standing(tenant="one"))
            for live in client.ledger.live.values():
                live.log.emitted.append(7)
            client.ledger.stats = structs.replace(
                client.stats, n_received=n, tokens_received=100 * n, n_running=n
            )
            for i in range(18):
                others = Standing(tenant=f"other {i}")
                await client.submit([(tuple(range(10)), params)], 1, standing=others)
            with pytest.raises(CapacityError, match=r"180 prompt tokens wait .* holds 180:"):
                await client.submit([((1, 2), params)], 1, standing=Standing(tenant="new"))

    asyncio.run(run())


def test_beams_that_are_to_come_have_their_places() -> None:
    """Searches send one choice first and the others once its prompt is computed: many of them,
    each taken for its first, would fill the queue beyond its end and keep everybody out."""

    async def run() -> None:
        async with client_of(max_requests=99, max_queued_tokens=200) as client:
            one = Standing(tenant="one")
            prompt = [(tuple(range(10)), TokenParams(seed=1, max_tokens=1))]
            await client.submit(prompt, READY.max_num_seqs, standing=one)

            async def search() -> EventStream:
                client.admit(Size(1, 6, 10, one))
                first = numbered(prompt, 1, one, COMMON)
                return await client.open(first, Size(1, 1, 10, one, n_beams=5))

            streams = [await search(), await search()]
            with pytest.raises(CapacityError, match=r"160 prompt tokens wait and 60 more"):
                await search()
            beams = numbered(prompt * 6, 1, one, COMMON)
            await client.go_on(streams[0], beams, Size(6, 1, 60, one))
            client.admit(Size(1, 3, 10, one))
            with pytest.raises(CapacityError, match=r"170 prompt tokens wait and 40 more"):
                client.admit(Size(1, 4, 10, one))
            for stream in streams:
                client.release(stream)
            assert (client._admission.n_to_come, client._admission.tokens_to_come) == (0, 0)

    asyncio.run(run())


def test_who_leaves_during_a_pause_has_sent_nothing() -> None:
    async def run() -> None:
        async with client_of() as client:
            one = Standing(tenant="one")
            prompts = [((1, 2, 3), TokenParams(seed=1, max_tokens=4))]
            client.gate.close(freezes=True)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.submit(prompts, 2, standing=one), 0.01)
            assert client._admission.n_sent == 0
            assert client._departed.of(one.owner, 0) == (0, 0)

    asyncio.run(run())


def test_who_leaves_before_anything_is_sent_leaves_nothing_that_counts() -> None:
    async def run() -> None:
        async with client_of(max_queued_requests=16) as client:
            one = Standing(tenant="one")
            client.gate.close(freezes=False)
            prompts = [((1, 2, 3), TokenParams(seed=1, max_tokens=4))]
            waiting = asyncio.ensure_future(client.submit(prompts, 8, standing=one))
            await asyncio.sleep(0)
            assert client.n_streams == 1
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert client._departed.of(one.owner, 0) == (0, 0)

    asyncio.run(run())


def test_who_has_all_requests_keeps_nobody_else_out() -> None:
    async def run() -> None:
        async with client_of(max_requests=8) as client:
            prompts = [((1, 2, 3), TokenParams(seed=1, max_tokens=4))]
            for _ in range(8):
                await client.submit(prompts)
            with pytest.raises(CapacityError, match="8 requests run or wait, the limit is 8:"):
                await client.submit(prompts)
            await client.submit(prompts, 1, standing=Standing(tenant="other"))
            with pytest.raises(CapacityError, match="9 requests run or wait, the limit is 9:"):
                await client.submit(prompts, 1, standing=Standing(tenant="third"))

    asyncio.run(run())
