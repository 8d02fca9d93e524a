"""Tools, and ways to read an answer that may call them."""

from __future__ import annotations

from typing import Any

from kvasir.toolcalls.format import ToolFormat
from kvasir.toolcalls.grammar import Tool, kinds_of
from kvasir.toolcalls.parser import MessageParser
from kvasir.toolcalls.pieces import message_of
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.table import REASONING

THINK = next(one for one in REASONING if one.begin == "<think>")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "o": {"type": "object"},
        "unit": {"enum": ["c", "f"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [Tool("get", SCHEMA), Tool("get_x", {"type": "object", "properties": {}})]
READINGS = {
    "plain": (None, False, ""),
    "thinks": (THINK, False, "<think>\nI <tool_call> {\n</think>\n\n"),
    "open": (THINK, True, "\nI <tool_call> {\n</think>\n\n"),
}


def reading_of(form: ToolFormat, kind: str) -> tuple[Reading, str]:
    thoughts, is_open, before = READINGS[kind]
    return Reading(form, thoughts, is_open, kinds_of(TOOLS), key="k"), before


def read_in(reading: Reading, pieces: list[str]) -> object:
    parser = MessageParser(reading)
    found = [piece for text in pieces for piece in parser.feed(text)]
    return message_of([*found, *parser.finish()])
