"""Anthropic's content blocks: what is said of tools, and what an answer is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve import sse
from kvasir.serve.parts import Parts
from kvasir.serve.resolved import Json
from kvasir.serve.tools import ToolWish, wish_of
from kvasir.tokenizer.messages import IMAGE_KIND, is_list, read_content
from kvasir.toolcalls.grammar import Choice
from kvasir.toolcalls.pieces import CallArguments, CallBegin, Piece, Said, Thought

IMAGE = "image"
SOURCES = {"base64": ("media_type", "data"), "url": ("url",)}
"""Of images: fields that each type of source has."""
CHOICES: dict[str, Choice] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


class MessageToolChoice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool = False


def read_tools(tools: Sequence[Json], choice: MessageToolChoice | None) -> ToolWish | None:
    """Raises RequestError (400)."""
    choice = choice or MessageToolChoice("auto")
    if choice.type not in CHOICES or (choice.type == "tool") != (choice.name is not None):
        raise RequestError(
            "tool_choice.type must be auto, any, none, or tool with a name", param="tool_choice"
        )
    for i, tool in enumerate(tools):
        if tool.get("type", "custom") != "custom":
            raise RequestError(
                f"tools[{i}].type: only tools of the client's own are supported",
                param=f"tools[{i}].type",
                code="unsupported_parameter",
            )
    return wish_of(
        [{**tool, "parameters": tool.get("input_schema")} for tool in tools],
        "tools",
        choice=CHOICES[choice.type],
        allowed=None if choice.name is None else (choice.name,),
        parallel=not choice.disable_parallel_tool_use,
    )


def plain_messages(messages: Sequence[Json]) -> list[Json]:
    """Blocks of tools and reasoning as fields and messages of their own. Raises RequestError
    (400)."""
    return [plain for i, said in enumerate(messages) for plain in _plain(said, f"messages[{i}]")]


def _plain(message: Json, where: str) -> list[Json]:
    content = message.get("content")
    if not is_list(content) or not any(_type(block) in _OWN for block in content):
        return [message]
    found: list[Json] = []
    texts: list[Any] = []
    own: Json = {}
    for i, block in enumerate(content):
        if _type(block) == IMAGE:
            block = _plain_image(block, f"{where}.content[{i}].source")
        reader = _READERS.get(_type(block))
        if reader is None:
            texts.append(block)
            continue
        kind, role = _type(block), message.get("role")
        if role != ("user" if kind == "tool_result" else "assistant"):
            raise RequestError(
                f"{where}.content[{i}]: a {kind} does not belong to the role {role!r:.32}",
                param=f"{where}.content[{i}]",
            )
        reader(block, f"{where}.content[{i}]", own, found)
    if texts or own:
        found.append({**message, "content": texts or "", **own})
    return found


def _type(block: object) -> str:
    return str(block.get("type")) if isinstance(block, Mapping) else ""


def _read_result(block: Json, where: str, own: Json, found: list[Json]) -> None:
    said = block.get("content", "")
    content = "" if said in ("", []) else read_content(said, f"{where}.content")
    found.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content})


def _read_use(block: Json, where: str, own: Json, found: list[Json]) -> None:
    function = {"name": block.get("name"), "arguments": block.get("input", {})}
    own.setdefault("tool_calls", []).append({"id": block.get("id"), "function": function})


def _read_thought(block: Json, where: str, own: Json, found: list[Json]) -> None:
    said = block.get("thinking")
    if not isinstance(said, str):
        raise RequestError(f"{where}.thinking must be text", param=f"{where}.thinking")
    own["reasoning"] = own.get("reasoning", "") + said


def _plain_image(block: Json, where: str) -> Json:
    source = block.get("source")
    kind, said = (source.get("type"), source) if isinstance(source, Mapping) else ("", {})
    found = [said.get(name) for name in SOURCES.get(str(kind), ())]
    if not found or not all(isinstance(x, str) and x for x in found):
        raise RequestError(
            f"{where} must be of type base64, with media_type and data, or of type url, with url",
            param=where,
            code="unsupported_parameter",
        )
    url = found[0] if kind == "url" else f"data:{found[0]};base64,{found[1]}"
    return {"type": IMAGE_KIND, IMAGE_KIND: url}


_READERS = {"tool_result": _read_result, "tool_use": _read_use, "thinking": _read_thought}
_OWN = {*_READERS, IMAGE}


def blocks_of(pieces: Sequence[Piece]) -> list[Json]:
    """Of an answer, in the order in which a stream tells them."""
    blocks: list[tuple[Piece, list[str]]] = []
    for piece in pieces:
        if isinstance(piece, CallBegin):
            blocks.append((piece, []))
        elif isinstance(piece, CallArguments) or (blocks and type(blocks[-1][0]) is type(piece)):
            blocks[-1][1].append(piece.text)
        else:
            blocks.append((piece, [piece.text]))
    return [_block(piece, "".join(texts)) for piece, texts in blocks or [(Said(""), [])]]


def _block(piece: Piece, text: str) -> Json:
    """Arguments that were cut are an empty object."""
    if isinstance(piece, Thought):
        return {"type": "thinking", "thinking": text, "signature": ""}
    if not isinstance(piece, CallBegin):
        return {"type": "text", "text": text, "citations": None}
    try:
        given = json.loads(text)
    except ValueError:
        given = {}
    return _used(piece.id, piece.name, given)


def _used(call_id: str, name: str, given: Any) -> Json:
    """The model itself calls, not a program that it runs."""
    block = {"type": "tool_use", "id": call_id, "name": name, "input": given}
    return {**block, "caller": {"type": "direct"}}


class BlockEvents:
    """One block after the other, as pieces come."""

    def __init__(self) -> None:
        self._index = -1
        self._kind = ""

    def tell(self, pieces: Sequence[Piece]) -> list[Parts]:
        events: list[Parts] = []
        for piece in pieces:
            if isinstance(piece, CallBegin):
                events += self._open("tool_use", _used(piece.id, piece.name, {}))
            elif isinstance(piece, CallArguments):
                events.append(self._delta("input_json_delta", "partial_json", piece.text))
            elif isinstance(piece, Thought):
                if self._kind != "thinking":
                    block = {"type": "thinking", "thinking": "", "signature": ""}
                    events += self._open("thinking", block)
                events.append(self._delta("thinking_delta", "thinking", piece.text))
            else:
                if self._kind != "text":
                    events += self._open("text", {"type": "text", "text": ""})
                events.append(self._delta("text_delta", "text", piece.text))
        return events

    def end(self) -> list[Parts]:
        """Of the last block; there is always one."""
        events = [] if self._kind else self._open("text", {"type": "text", "text": ""})
        return [*events, self._stop()]

    def _open(self, kind: str, block: Json) -> list[Parts]:
        events = [self._stop()] if self._kind else []
        self._kind = kind
        self._index += 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*events, [sse.named("content_block_start", start)]]

    def _stop(self) -> Parts:
        stop = {"type": "content_block_stop", "index": self._index}
        return [sse.named("content_block_stop", stop)]

    def _delta(self, kind: str, key: str, text: str) -> Parts:
        delta = {"type": kind, key: text}
        said = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return [sse.named("content_block_delta", said)]
