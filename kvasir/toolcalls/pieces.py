"""What a message is made of, as it grows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Said(msgspec.Struct, frozen=True):
    text: str


class Thought(msgspec.Struct, frozen=True):
    text: str


class CallBegin(msgspec.Struct, frozen=True):
    number: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """What follows of the JSON text of a call's arguments."""

    number: int
    text: str


Piece = Said | Thought | CallBegin | CallArguments


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str
    """A JSON object; cut where the answer was."""


class Message(msgspec.Struct, frozen=True):
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def message_of(pieces: Iterable[Piece]) -> Message:
    content: list[str] = []
    reasoning: list[str] = []
    begun: list[CallBegin] = []
    arguments: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, Said):
            content.append(piece.text)
        elif isinstance(piece, Thought):
            reasoning.append(piece.text)
        elif isinstance(piece, CallBegin):
            begun.append(piece)
            arguments.append([])
        else:
            arguments[piece.number].append(piece.text)
    calls = (
        ToolCall(call.id, call.name, "".join(said))
        for call, said in zip(begun, arguments, strict=True)
    )
    return Message("".join(content), "".join(reasoning), tuple(calls))
