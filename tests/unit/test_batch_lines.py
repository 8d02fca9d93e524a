"""Where lines of a batch are read: as bodies of their size are."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir.core.errors import RequestError
from kvasir.serve.batch.line import InvalidLine, LineReader
from kvasir.serve.bodies import LARGE_READERS, SMALL_BYTES, BodyBudget
from kvasir.serve.exchange import INLINE_BYTES


@pytest.mark.parametrize(
    ("size", "is_inline", "waits"),
    [(10, True, False), (INLINE_BYTES, False, False), (SMALL_BYTES, False, True)],
)
def test_large_lines_are_read_beside_the_event_loop_in_turn(
    size: int, is_inline: bool, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []

    def parse(data: bytes) -> dict[str, Any]:
        threads.append(threading.current_thread() is threading.main_thread())
        return {}

    monkeypatch.setattr("kvasir.serve.batch.line.parse_object", parse)

    async def read() -> None:
        bodies = BodyBudget(2**30, 2**30, 1.0)
        service: Any = SimpleNamespace(
            bodies=bodies,
            caller_of=lambda owner: None,
            options=SimpleNamespace(max_body_bytes=2**30, strict=False),
        )
        for _ in range(LARGE_READERS):
            await bodies.lanes[1].acquire()
        reader = LineReader(service, "/v1/completions", b"")
        reading = asyncio.create_task(reader.read(1, b"x" * (size + 1)))
        done, _ = await asyncio.wait((reading,), timeout=0.05 if waits else 10)
        assert bool(done) is not waits
        bodies.lanes[1].release()
        with pytest.raises(InvalidLine, match="custom_id"):
            await reading

    asyncio.run(read())
    assert threads == [is_inline]


def with_image(number: int) -> bytes:
    """A large line."""
    parts = [
        {"type": "text", "text": "x" * SMALL_BYTES},
        {"type": "image_url", "image_url": {"url": f"https://images.example/{number}.png"}},
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    path = "/v1/chat/completions"
    line = {"custom_id": str(number), "method": "POST", "url": path, "body": body}
    return json.dumps(line).encode()


def test_a_line_that_fetches_its_images_holds_no_other_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are fetched at a time, however few are read at a time; and what follows has a place
    again."""
    n = LARGE_READERS + 2
    bodies = BodyBudget(2**30, 2**30, 1.0)
    lane = bodies.lanes[1]
    fetching: list[str] = []
    all_fetch = asyncio.Event()
    is_held: list[bool] = []

    async def fetched(messages: Any, body: Any, owner: str) -> Any:
        fetching.append(owner)
        if len(fetching) == n:
            all_fetch.set()
        await all_fetch.wait()
        return messages

    async def server_of(*_: Any) -> Any:
        return SimpleNamespace(
            text=SimpleNamespace(sight=object()),
            max_images=8,
            fetcher=SimpleNamespace(fetched=fetched),
            caller=SimpleNamespace(key_id="somebody"),
        )

    async def resolve_request(*_: Any) -> Any:
        is_held.append(lane.locked() or lane._value < LARGE_READERS)
        raise RequestError("that is enough", param="messages")

    monkeypatch.setattr("kvasir.serve.batch.line.server_of", server_of)
    monkeypatch.setattr("kvasir.serve.batch.line.resolve_request", resolve_request)
    service: Any = SimpleNamespace(
        bodies=bodies,
        caller_of=lambda owner: None,
        check_model=lambda name: SimpleNamespace(name=name),
        options=SimpleNamespace(max_body_bytes=2**30, strict=False),
    )

    async def read() -> None:
        reader = LineReader(service, "/v1/chat/completions", b"")
        lines = (reader.read(i, with_image(i)) for i in range(n))
        found = await asyncio.wait_for(asyncio.gather(*lines, return_exceptions=True), 30)
        assert [str(error) for error in found] == ["that is enough"] * n
        assert all(isinstance(error, InvalidLine) for error in found)
        assert lane._value == LARGE_READERS

    asyncio.run(read())
    assert fetching == ["somebody"] * n and is_held == [True] * n
