"""Reasoning and calls in the words of chat completions."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.serve.resolved import Json
from kvasir.toolcalls.pieces import CallArguments, CallBegin, Message, Piece, Said, Thought


def finish_of(finish: str | None, *, has_calls: bool) -> str | None:
    return "tool_calls" if has_calls and finish == "stop" else finish


def more_of(message: Message, *, reasons: bool) -> Json:
    """What a whole message says beside its content."""
    found: Json = {}
    if message.reasoning and reasons:
        found["reasoning_content"] = found["reasoning"] = message.reasoning
    if message.calls:
        found["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in message.calls]
        if not message.content:
            found["content"] = None
    return found


def delta_of(pieces: Sequence[Piece], *, reasons: bool) -> Json:
    """What is new."""
    content = "".join(piece.text for piece in pieces if isinstance(piece, Said))
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    found: Json = {"content": content} if content else {}
    if thoughts and reasons:
        found["reasoning_content"] = found["reasoning"] = thoughts
    calls: dict[int, Json] = {}
    for piece in pieces:
        if isinstance(piece, CallBegin):
            calls[piece.number] = {"index": piece.number, **_call(piece.id, piece.name, "")}
        elif isinstance(piece, CallArguments):
            call = calls.setdefault(
                piece.number, {"index": piece.number, "function": {"arguments": ""}}
            )
            call["function"]["arguments"] += piece.text
    if calls:
        found["tool_calls"] = list(calls.values())
    return found


def _call(call_id: str, name: str, arguments: str) -> Json:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}
