"""The items of a response's output: told as they grow, and as they are in the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvasir.serve.parts import HOLE, Part, Parts, filled
from kvasir.serve.resolved import Json
from kvasir.toolcalls.pieces import CallArguments, CallBegin, Piece, Thought

encode = msgspec.json.Encoder().encode

PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""What items with contents are made of: one part each."""


class EventWriter:
    """Events, which count from 0."""

    def __init__(self) -> None:
        self.number = 0
        """Of the next."""

    def event(self, kind: str, *parts: Part) -> Parts:
        name = f"response.{kind}".encode()
        number, self.number = self.number, self.number + 1
        head = b'event: %b\ndata: {"type":"%b","sequence_number":%d,' % (name, name, number)
        return [head, *parts, b"}\n\n"]


class OutputItems:
    """One item is open at a time; what belongs to another one ends it."""

    def __init__(self, writer: EventWriter, suffix: str) -> None:
        """``suffix``: of the ids of the items."""
        self.done: list[Parts] = []
        """Those that have ended, as JSON."""
        self._writer = writer
        self._suffix = suffix
        self._kind = ""
        """Of the open item."""
        self._own: Json = {}
        """Its fields."""
        self._place = b""
        self._texts: list[str] = []
        self._entries = bytearray()
        """Logprobs of its text."""

    def tell(self, pieces: Sequence[Piece]) -> list[Parts]:
        events: list[Parts] = []
        for piece in pieces:
            if isinstance(piece, CallBegin):
                own = {"call_id": piece.id, "name": piece.name}
                events += self._open("function_call", own)
            elif isinstance(piece, CallArguments):
                events.append(self._grow("function_call_arguments.delta", piece.text))
            elif isinstance(piece, Thought):
                events += [] if self._kind == "reasoning" else self._open("reasoning", {})
                events.append(self._grow("reasoning_text.delta", piece.text))
            else:
                events += self.say(piece.text, bytearray())
        return events

    def say(self, text: str, entries: bytearray) -> list[Parts]:
        """Text of a message, and logprobs."""
        events = [] if self._kind == "message" else self.open_message()
        if entries:
            self._entries += (b"," if self._entries else b"") + entries
        tail = (b',"logprobs":[', entries, b"]")
        return [*events, self._grow("output_text.delta", text, *tail)]

    def open_message(self) -> list[Parts]:
        return self._open("message", {})

    def close(self, status: str) -> list[Parts]:
        """Events that end what is open; there is always an item."""
        events = [] if self._kind or self.done else self.open_message()
        return events + (self._close(status) if self._kind else [])

    def _open(self, kind: str, own: Json) -> list[Parts]:
        events = self._close("completed") if self._kind else []
        index, self._kind, self._own = len(self.done), kind, own
        self._texts, self._entries = [], bytearray()
        item_id = f"{PREFIXES[kind]}{self._suffix}" + (f"_{index}" if index else "")
        self._own = {"id": item_id, "type": kind, "status": "in_progress", **own}
        place = {"item_id": item_id, "output_index": index}
        self._place = encode(place | ({"content_index": 0} if kind in PARTS else {}))[1:-1]
        item = self._item("in_progress", [])
        events.append(self._event("output_item.added", b'"output_index":%d,"item":' % index, *item))
        if kind in PARTS:
            part = self._part("", b"")
            events.append(self._event("content_part.added", self._place, b',"part":', *part))
        return events

    def _grow(self, kind: str, text: str, *tail: Part) -> Parts:
        self._texts.append(text)
        return self._event(kind, self._place, b',"delta":', encode(text), *tail)

    def _close(self, status: str) -> list[Parts]:
        text, kind, index = "".join(self._texts), self._kind, len(self.done)
        part = self._part(text, self._entries)
        item = self._item(status, part)
        events = [self._text_done(text)]
        if kind in PARTS:
            events.append(self._event("content_part.done", self._place, b',"part":', *part))
        events.append(self._event("output_item.done", b'"output_index":%d,"item":' % index, *item))
        self.done.append(item)
        self._kind = ""
        return events

    def _text_done(self, text: str) -> Parts:
        said = encode(text)
        if self._kind == "function_call":
            name = encode(self._own["name"])
            named = (b',"name":', name, b',"arguments":', said)
            return self._event("function_call_arguments.done", self._place, *named)
        if self._kind == "reasoning":
            return self._event("reasoning_text.done", self._place, b',"text":', said)
        rest = (b',"text":', said, b',"logprobs":[', self._entries, b"]")
        return self._event("output_text.done", self._place, *rest)

    def _part(self, text: str, entries: bytes | bytearray) -> Parts:
        if self._kind != "message":
            return [b'{"type":"reasoning_text","text":%b}' % encode(text)]
        head = b'{"type":"output_text","text":%b,"annotations":[],"logprobs":[' % encode(text)
        return [head, entries, b"]}"]

    def _item(self, status: str, part: Sequence[Part]) -> Parts:
        own: dict[str, Any] = {**self._own, "status": status}
        if self._kind == "function_call":
            return [encode({**own, "arguments": "".join(self._texts)})]
        key, value = ("role", "assistant") if self._kind == "message" else ("summary", [])
        own[key] = value
        if not part:
            return [encode({**own, "content": []})]
        return filled({**own, "content": [HOLE]}, part)

    def _event(self, kind: str, *parts: Part) -> Parts:
        return self._writer.event(kind, *parts)
