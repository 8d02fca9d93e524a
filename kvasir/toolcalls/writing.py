"""Calls in the words of a format, as a model writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvasir.toolcalls.format import Literals, Parameter, Part, ToolFormat
from kvasir.toolcalls.literal_grammar import spelled


def written(
    form: ToolFormat, calls: Sequence[tuple[str, Mapping[str, Any]]], space: str = ""
) -> str:
    """``calls``: names and arguments; ``space`` stands wherever white space may be."""
    if not calls:
        return ""
    turn = "".join(
        _call(form.next if number else form.first, form, number, *call, space)
        for number, call in enumerate(calls)
    )
    return turn + "".join(space if part == "~" else part for part in form.last)


def _call(
    parts: tuple[Part, ...],
    form: ToolFormat,
    number: int,
    name: str,
    arguments: Mapping[str, Any],
    space: str,
) -> str:
    words = {"~": space, "$name": name, "$id": f"call{number:05}", "$index": str(number)}
    words["$args"] = _arguments(form.arguments, arguments, space)
    return "".join(words.get(part, part) for part in parts)


def _arguments(form: Parameter | Literals | None, arguments: Mapping[str, Any], space: str) -> str:
    if form is None:
        return json.dumps(arguments, ensure_ascii=False)
    if isinstance(form, Literals):
        keys = sorted(arguments) if form.is_sorted else arguments
        return ",".join(f"{key}{form.assign}{spelled(arguments[key], form)}" for key in keys)
    return space.join(_tagged(form, key, value) for key, value in arguments.items())


def _tagged(tags: Parameter, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    said = value if is_text else json.dumps(value, ensure_ascii=False)
    kind = tags.as_text if is_text else tags.as_json
    return f"{tags.before}{key}{tags.between}{kind}{said}{tags.after}"
