"""The measurement of what an event costs: what it counts, and between which moments."""

from __future__ import annotations

import asyncio
import os

import pytest

from kvasir.bench import events
from kvasir.bench.cputime import exact_cpu_seconds
from kvasir.bench.dialects import DIALECTS, listen
from kvasir.bench.events import compare
from kvasir.bench.http_client import Target
from kvasir.core.errors import KvasirError
from kvasir.serve.dialects.table import GENERATES


def test_every_dialect_is_asked_where_it_is_spoken() -> None:
    for spoken in DIALECTS.values():
        asked = GENERATES[spoken.path].read(spoken.body("m", "hi", 5), strict=True)
        assert asked.stream and asked.params.temperature == 0 and asked.params.max_tokens == 5


def answered(*pieces: bytes) -> list[int]:
    """How many events are heard of a stream that comes in ``pieces``."""

    async def run() -> list[int]:
        is_over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.02)
            writer.close()
            await writer.wait_closed()
            is_over.set()

        heard: list[int] = []
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            target = Target("127.0.0.1", port, "")
            try:
                await listen(target, DIALECTS["completions"], {}, heard.append)
            finally:
                await is_over.wait()
        return heard

    return asyncio.run(run())


def test_events_are_counted_also_where_a_piece_ends_inside_one() -> None:
    head, event = b"HTTP/1.1 200 OK\r\n\r\n", b'data: {"choices":[{}]}\n\n'
    end = b"0\r\n\r\n"
    assert answered(head + event + event, event + end) == [2, 1]
    assert answered(head + event[:12], event[12:20], event[20:] + event, end) == [1, 1]
    assert (
        sum(answered(head, *(event[i : i + 1] for i in range(len(event))), b"0\r", b"\n\r\n")) == 1
    )


def test_a_refusal_and_an_early_end_are_told() -> None:
    with pytest.raises(KvasirError, match="503"):
        answered(b"HTTP/1.1 503 No\r\n\r\n{}")
    with pytest.raises(KvasirError, match="ended early"):
        answered(b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices":[{}]}\n\n')


def test_the_window_opens_with_the_last_stream_and_closes_with_a_quarter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = iter((10.0, 10.5))
    monkeypatch.setattr(events, "exact_cpu_seconds", lambda pid: next(seconds))
    window = events._EventWindow(1, n_streams=8)
    for stream in range(8):
        window.heard(stream, 3)
    for stream in range(8):
        window.heard(stream, 1)  # the last of these is event 32
    window.heard(0, 20_000)
    window.ended()
    window.ended()
    window.heard(1, 7)
    window.ended()
    assert window.microseconds() == pytest.approx(25.0)


def test_without_a_window_there_is_no_figure() -> None:
    window = events._EventWindow(os.getpid(), n_streams=2)
    window.heard(0, 9)
    window.ended()
    with pytest.raises(KvasirError, match="more tokens"):
        window.microseconds()


def test_dialects_are_compared_with_chat() -> None:
    found = compare({"chat": [20.0, 22.0, 21.0], "tgi": [31.5]})
    assert found["chat"]["over_chat"] == 1.0 and found["tgi"]["over_chat"] == 1.5
    assert found["chat"]["runs"] == [20.0, 22.0, 21.0]


def test_cpu_time_grows_with_work() -> None:
    before = exact_cpu_seconds(os.getpid())
    sum(range(2_000_000))
    assert exact_cpu_seconds(os.getpid()) > before


def test_a_plain_server_streams_what_chat_streams() -> None:
    with events._plain() as bare:
        bare.wait()
        settings = events.EventsSettings(streams=3, output_len=12, repeat=1)
        assert events._microseconds(bare, DIALECTS["chat"], settings) > 0
