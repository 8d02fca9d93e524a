"""Where lines of a batch are read: as bodies of their size are."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

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
