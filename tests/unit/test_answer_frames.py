"""Scores of a prompt cross in frames that are read in a moment, and stay packed until then."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from msgspec import structs

from kvasir.core.messages import EngineStats, StepEvents, TokenEvent, TokenLogprob
from kvasir.serve import frames, framing
from kvasir.serve.outbox import MAX_ITEMS, SCORES, SCORES_BYTES, Outbox
from kvasir.serve.streams import READ_EVENTS, READ_LOGPROBS, n_reads


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("n", [1, SCORES, 16_000])
def test_the_scores_of_a_prompt_come_in_parts_before_what_follows_them(
    pair: tuple[socket.socket, socket.socket], n: int
) -> None:
    top = tuple((i, -0.5) for i in range(20))
    scores = tuple(TokenLogprob(i, -1.0, 3, top) for i in range(n))
    event = TokenEvent(7, (5,), prompt_logprobs=scores, finish="length", n_cached=2)
    other = TokenEvent(8, (6,))
    payloads: list[bytes] = []

    def receive() -> None:
        while (payload := framing.receive(pair[1])) is not None:
            payloads.append(payload)

    reading = threading.Thread(target=receive)
    reading.start()
    Outbox(pair[0]).step(StepEvents((event, other), EngineStats(step=9)))
    pair[0].shutdown(socket.SHUT_WR)
    reading.join()
    told = [frames.decode_from_engine(x) for x in payloads]
    events = [event for x in told if isinstance(x, StepEvents) for event in x.events]
    *parts, last, after = events
    assert after == other
    unpacked = structs.replace(last, prompt_logprobs=scores, scores=b"", n_scores=0)
    assert unpacked == event
    assert all(x == TokenEvent(7, scores=x.scores, n_scores=x.n_scores) for x in parts)
    read = [frames.decode_scores(x.scores) for x in (*parts, last)]
    assert sum(read, ()) == scores
    assert [x.n_scores for x in (*parts, last)] == [len(some) for some in read]
    assert all(1 <= len(some) <= SCORES for some in read)
    assert max(map(len, payloads)) <= 2 * MAX_ITEMS * SCORES_BYTES


def test_a_failure_tells_no_scores(pair: tuple[socket.socket, socket.socket]) -> None:
    failed = TokenEvent(7, prompt_logprobs=(TokenLogprob(1, -1.0),), finish="error", error="no")
    Outbox(pair[0]).step(StepEvents((failed,), EngineStats()))
    told = frames.decode_from_engine(framing.receive(pair[1]) or b"")
    assert isinstance(told, StepEvents)
    (event,) = told.events
    assert (event.finish, event.prompt_logprobs) == ("error", ())
    assert frames.decode_scores(event.scores) == ()


def test_readers_of_logprobs_have_more_turns() -> None:
    item = TokenLogprob(1, -1.0, top=((1, -1.0),) * 20)
    assert n_reads([TokenEvent(i, (1,)) for i in range(READ_EVENTS - 1)]) == 1
    assert n_reads([TokenEvent(i, (1,)) for i in range(256)]) == 1 + 256 // READ_EVENTS
    scored = [TokenEvent(i, (1,), logprobs=(item,)) for i in range(256)]
    assert n_reads(scored) == 5 + 256 * 21 // READ_LOGPROBS
