"""The server's parts without a server: frames, JSON, requests, streams, limits, metrics."""

from __future__ import annotations

import asyncio
import gc
import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import EngineStats, Ready, StepEvents, TokenEvent
from kvasir.core.params import DRAWS
from kvasir.serve import frames, framing
from kvasir.serve.http_limits import check_headers, check_target
from kvasir.serve.jobs import fingerprint
from kvasir.serve.jsonbody import parse_object
from kvasir.serve.messages import Cancel
from kvasir.serve.protocol import completions
from kvasir.serve.protocol.completions import CompletionRequest
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.settle import MAX_UNTIDY, YOUNG, hurry, rarely, settle, tidy
from kvasir.serve.streams import SLOW_SECONDS, EventStream
from kvasir.serve.successor import check_successor

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.dictionaries(TEXT, JSON))
def test_every_object_is_read_as_written(value: dict[str, object]) -> None:
    assert parse_object(json.dumps(value).encode()) == value


@settings(max_examples=300)
@given(st.binary(max_size=64))
def test_no_bytes_escape_as_another_error(body: bytes) -> None:
    try:
        assert isinstance(parse_object(body), dict)
    except RequestError as error:
        assert error.status == 400


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from([*CompletionRequest.__struct_fields__, "tools", "x"]), JSON))
def test_no_object_escapes_as_another_error(body: dict[str, object]) -> None:
    try:
        request, _ = parse_request(CompletionRequest, body, completions.UNSUPPORTED, strict=False)
        completions.sampling_params(request)
    except RequestError as error:
        assert error.status == 400


def test_frames_cross_a_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = StepEvents((TokenEvent(1, tokens=(5, 6), finish="stop"),), EngineStats(step=3))
        ours.sendall(frames.encode(sent) + frames.encode(Cancel((1, 2))))
        first, second = framing.receive(theirs), framing.receive(theirs)
        assert first is not None
        assert second is not None
        assert frames.decode_from_engine(first) == sent
        assert frames.decode_to_engine(second) == Cancel((1, 2))
        ours.sendall(frames.encode(sent)[:-1])
        ours.close()
        assert framing.receive(theirs) is None


def test_frame_beyond_the_limit_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(framing.FrameError, match="exceeds"):
            framing.receive(theirs)


def test_stream_gives_events_before_the_failure() -> None:
    async def run() -> None:
        now = [5.0]
        stream = EventStream(10, 2, limit=2, clock=lambda: now[0])
        assert stream.push(TokenEvent(10, tokens=(1,)))
        assert stream.push(TokenEvent(11, tokens=(2,), finish="stop"))
        now[0] += 1.1 * SLOW_SECONDS
        assert not stream.push(TokenEvent(10, tokens=(3,)))
        assert stream.open == {10}
        stream.overflow()
        assert [event.id for event in await stream.read()] == [10, 11]
        with pytest.raises(RequestError, match="2 token events"):
            await stream.read()

    asyncio.run(run())


def test_a_reader_that_reads_is_not_failed_by_the_events_of_one_step() -> None:
    async def run() -> None:
        now = [5.0]
        stream = EventStream(0, 300, limit=2, clock=lambda: now[0])
        assert all(stream.push(TokenEvent(i, tokens=(1,))) for i in range(300))
        now[0] += 0.9 * SLOW_SECONDS
        found = [event.id for _ in range(5) for event in await stream.read()]
        assert found == list(range(300))
        now[0] += 0.9 * SLOW_SECONDS
        assert all(stream.push(TokenEvent(i, tokens=(2,))) for i in range(300))

    asyncio.run(run())


def test_first_failure_wins() -> None:
    async def run() -> None:
        stream = EventStream(1, 1, limit=1)
        stream.fail(KvasirError("first"))
        stream.fail(KvasirError("second"))
        with pytest.raises(KvasirError, match="first"):
            await stream.read()

    asyncio.run(run())


@pytest.mark.parametrize("target", [b"/", b"/v1/models?a=//b/../c", b"/v1/models/org%2Fname"])
def test_plain_targets_pass(target: bytes) -> None:
    assert check_target(target) is None


@pytest.mark.parametrize("host", [b"localhost", b"a.b-c:80", b"[::1]:8000", b"127.0.0.1"])
def test_plain_hosts_pass(host: bytes) -> None:
    assert check_headers([(b"host", host)], "1.1") is None


def test_a_fingerprint_names_arithmetic_and_sampler() -> None:
    ready = Ready("m", 320, 128, 8, 16, "cpu-0:int8/64:bfloat16", "root", 4)
    assert fingerprint(ready).endswith(f"-cpu-0:int8/64:bfloat16:draws-{DRAWS}")
    classical = structs.replace(ready, follows_drafts=True)
    assert fingerprint(classical) == f"{fingerprint(ready)}:by-drafts"
    check_successor(classical, ready)
    with pytest.raises(RequestError, match="sampled answers would change"):
        check_successor(ready, classical)


def test_garbage_is_collected_again_once_all_is_loaded() -> None:
    before = gc.get_threshold()
    hurry()
    assert not gc.isenabled()
    try:
        settle()
        assert gc.isenabled()
        assert gc.get_threshold() == before
        rarely()
        assert gc.get_threshold() == (YOUNG, 0, MAX_UNTIDY)
    finally:
        gc.enable()
        gc.unfreeze()
        gc.set_threshold(*before)


def test_what_lives_long_is_looked_through_when_there_is_no_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not while much comes and goes, and not after every little thing."""
    monkeypatch.setattr("kvasir.serve.settle.MIN_UNTIDY", 20)
    before, seen = gc.get_threshold(), list[int]()

    def watch(phase: str, info: dict[str, int]) -> None:
        seen.extend([info["generation"]] if phase == "start" else [])

    gc.collect()
    gc.callbacks.append(watch)
    try:
        rarely()
        kept = [[i] for i in range(7_000 * 5)]
        tidy()
        assert 2 not in seen
        kept.extend([i] for i in range(7_200 * 20))
        assert 2 not in seen
        tidy()
        assert seen.count(2) == 1
    finally:
        gc.callbacks.remove(watch)
        gc.set_threshold(*before)
