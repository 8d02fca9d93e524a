"""A long answer is gathered in blocks, sent in pieces and let go."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from kvasir.serve import allocator
from kvasir.serve.allocator import Leftovers
from kvasir.serve.exchange import Exchange
from kvasir.serve.parts import (
    HOLE,
    TEXT_LENGTH,
    WRITE_BYTES,
    Items,
    Parts,
    filled,
    listed,
    spelled,
    writes,
)


def test_parts_fill_the_hole_of_a_value() -> None:
    items = Items()
    for values in ([], [1, "é\0"], [], [None]):
        items.extend(values)
    assert items.data == '1,"é\\u0000",null'.encode()
    value = {"a": "\0[]", "b": [HOLE], "c": 1}
    whole = b"".join(filled(value, listed([[b"1", b"2"], [b"3"]])))
    assert whole == b'{"a":"\\u0000[]","b":[[12,3]],"c":1}'
    assert b"".join(filled({"a": None})) == b'{"a":null}'
    assert b"".join(listed([])) == b"[]"


@pytest.mark.parametrize("sizes", [[], [0], [1, 2], [WRITE_BYTES], [3, 3 * WRITE_BYTES, 5]])
def test_pieces_are_bounded_and_as_few_as_can_be(sizes: list[int]) -> None:
    parts = [bytearray(bytes([i]) * size) for i, size in enumerate(sizes)]
    pieces = list(writes(parts))
    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) == WRITE_BYTES for piece in pieces[:-1])
    assert all(0 < len(piece) <= WRITE_BYTES for piece in pieces)


def test_a_long_answer_gives_others_turns_and_is_let_go_as_it_is_sent() -> None:
    sent: list[dict[str, Any]] = []
    left: list[int] = []
    parts: Parts = [bytes([i]) * WRITE_BYTES for i in range(9)]
    expected = b"".join(parts)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        left.append(len(parts))

    async def run() -> list[int]:
        exchange: Any = Exchange({"headers": []}, send, send, None)  # type: ignore[arg-type]
        sending = asyncio.create_task(exchange.send_parts(parts))
        seen: list[int] = []
        while not sending.done():
            await asyncio.sleep(0)
            seen.append(sum(len(message.get("body", b"")) for message in sent))
        return seen

    seen = asyncio.run(run())
    assert all(after - before <= WRITE_BYTES for before, after in pairwise(seen))
    assert dict(sent[0]["headers"])[b"content-length"] == str(len(expected)).encode()
    assert b"".join(message["body"] for message in sent[1:]) == expected
    assert left[1:-1] == list(range(8, -1, -1))
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * 9 + [False]


def test_memory_goes_back_once_for_all_who_leave_some(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(allocator, "trim", lambda: trims.append(1))
    monkeypatch.setattr(allocator, "GIVE_BACK_SECONDS", 0.01)

    async def run() -> None:
        leftovers = Leftovers()
        for _ in range(2):
            for _ in range(100):
                leftovers.give_back_soon()
            assert not trims[1:]
            await asyncio.sleep(0.1)

    asyncio.run(run())
    assert len(trims) == 2


def test_long_texts_are_spelled_in_pieces() -> None:
    long = ['a"\n\\é😀' * TEXT_LENGTH, "x" * (TEXT_LENGTH + 1), "y" * TEXT_LENGTH, ""]
    raw = msgspec.Raw(b'{"z":1.50}')
    value = {"of": [{"text": text, "raw": raw, "n": None} for text in long], "é": long[0]}
    found = spelled(value)
    assert b"".join(found) == msgspec.json.encode(value)
    assert max(map(len, found)) <= 6 * TEXT_LENGTH
    assert b"".join(spelled([])) == b"[]"
