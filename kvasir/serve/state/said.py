"""The messages that a stored chat or response answered: in groups; a page of a chat reads those
that it shows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import msgspec

from kvasir.serve.long import LONG_BYTES, beside
from kvasir.serve.state import parts
from kvasir.serve.state.entries import Gone, Page
from kvasir.serve.state.parts import PIECE_BYTES
from kvasir.serve.state.store import Store
from kvasir.serve.text import n_written
from kvasir.tokenizer.messages import ChatMessage

MESSAGES, GROUPS = "messages", "groups"
"""Parts: the groups, one behind the other, and where each begins."""

_group = msgspec.msgpack.Decoder(tuple[ChatMessage, ...])
_groups = msgspec.msgpack.Decoder(list[tuple[int, int]])


def said_of(messages: Sequence[ChatMessage]) -> dict[str, bytes]:
    """Parts: MessagePack of the messages of each group; and of each group the number of its first
    message, and of its first byte, then how many there are of both."""
    data = bytearray()
    groups: list[tuple[int, int]] = []
    some: list[msgspec.Raw] = []
    n_bytes = 0
    for i, message in enumerate(messages):
        if not some:
            groups.append((i, len(data)))
        some.append(msgspec.Raw(one := msgspec.msgpack.encode(message)))
        n_bytes += len(one)
        if n_bytes >= PIECE_BYTES:
            data += msgspec.msgpack.encode(some)
            some, n_bytes = [], 0
    if some:
        data += msgspec.msgpack.encode(some)
    ends = [*groups, (len(messages), len(data))]
    return {MESSAGES: bytes(data), GROUPS: msgspec.msgpack.encode(ends)}


async def write_said(messages: Sequence[ChatMessage]) -> dict[str, bytes]:
    """``said_of``, beside the event loop where that takes long."""
    return await beside(n_said(messages), lambda: said_of(messages))


def n_said(messages: Sequence[ChatMessage]) -> int:
    """Bytes. Of what is more than ``LONG_BYTES`` not all is counted."""
    calls = ([call.arguments for call in message.calls] for message in messages)
    parts = (part if isinstance(part, str) else part.data for x in messages for part in x.parts)
    said = (text for message in messages for text in (message.content, message.reasoning))
    return n_written(chain(said, parts, calls), LONG_BYTES)


def said_in(found: Mapping[str, bytes]) -> tuple[ChatMessage, ...]:
    """The messages of these parts, of which no more than a group is read in one call."""
    data = memoryview(found.get(MESSAGES, b""))
    places = [at for _, at in _groups.decode(found[GROUPS])]
    return tuple(x for a, b in pairwise(places) for x in _group.decode(data[a:b]))


async def read_said(
    store: Store, chat_id: str, asked: Page
) -> tuple[list[tuple[str, ChatMessage]], bool]:
    """Those of a page with their ids, and whether more follow. Raises Gone (404)."""
    _, found = await parts.read(store, chat_id, GROUPS, lambda db: None)
    if not found:
        raise Gone("chat", chat_id)
    groups = _groups.decode(b"".join(found))
    numbers, has_more = _numbers(chat_id, groups[-1][0], asked)
    starts = [first for first, _ in groups[:-1]]
    read: dict[int, tuple[ChatMessage, ...]] = {}
    messages: list[tuple[str, ChatMessage]] = []
    for number in numbers:
        at = bisect_right(starts, number) - 1
        if at not in read:
            read[at] = await _read_group(store, chat_id, groups[at][1], groups[at + 1][1])
        messages.append((f"{chat_id}-{number}", read[at][number - starts[at]]))
    return messages, has_more


def _numbers(chat_id: str, n: int, asked: Page) -> tuple[range, bool]:
    """Those of a page, of ``n`` messages. Raises Gone (404) for ``after``."""
    ordered = range(n - 1, -1, -1) if asked.newest_first else range(n)
    begin = 0
    if asked.after is not None:
        at = asked.after.removeprefix(f"{chat_id}-")
        number = int(at) if at.isdecimal() and len(at) < 10 else n
        if number >= n or asked.after != f"{chat_id}-{number}":
            raise Gone("item", asked.after, "after")
        begin = ordered.index(number) + 1
    return ordered[begin : begin + asked.limit], begin + asked.limit < n


async def _read_group(store: Store, chat_id: str, begin: int, end: int) -> tuple[ChatMessage, ...]:
    """The messages in these bytes. Raises Gone (404)."""
    first = begin // PIECE_BYTES
    span = slice(first, -(-end // PIECE_BYTES))
    _, found = await parts.read(store, chat_id, MESSAGES, lambda db: None, span)
    if not found:
        raise Gone("chat", chat_id)
    data = memoryview(b"".join(found))
    return _group.decode(data[begin - first * PIECE_BYTES : end - first * PIECE_BYTES])
