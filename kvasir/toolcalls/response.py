"""What a model's ``response_template`` (transformers 5.13 and later) says of its calls.

The template describes parts of an answer by literal texts and regular expressions. No expression of
a model's file is run: those that are made of literal text, white space and named groups become
patterns, with others the template is not used.
https://huggingface.co/docs/transformers/main/chat_response_parsing
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kvasir.toolcalls.format import Literals, Parameter, Reasoning, ToolFormat

MAX_PATTERN = 1024
"""Characters of an expression."""
_TOKEN = re.compile(
    r"(?P<group>\(\?P<(?P<name>name|key|value)>(\\w|\\S|\.|\[[^\]\\]{1,40}\])[*+]\??\))"
    r"|(?P<space>(\\s|\\n|\n| )[*+?]\??)"
    r"|\\(?P<escaped>[^\w\s~])|\\(?P<newline>n)"
    r"|(?P<plain>[^\\()\[\]{}.*+?^$|~])"
)


def format_of(template: object) -> ToolFormat | None:
    """None where it describes no calls, or in a way that patterns cannot say."""
    if not _is_text(template):
        return None
    field = _mapping(_mapping(template).get("fields")).get("tool_calls")
    if not isinstance(field, Mapping):
        return None
    begin, end = _edge(field, "open"), _edge(field, "close")
    if begin is None or end is None or not begin.strip("~"):
        return None
    return _each(field, begin, end) if field.get("transform_each") else _one(field, begin, end)


def reasoning_in(template: object) -> Reasoning | None:
    fields = _mapping(_mapping(template).get("fields")) if _is_text(template) else {}
    for name in ("thinking", "reasoning_content", "reasoning"):
        field = _mapping(fields.get(name))
        begin, end = field.get("open"), field.get("close")
        if isinstance(begin, str) and isinstance(end, str) and begin.strip() and end.strip():
            return Reasoning(begin.strip(), end.strip())
    return None


def pattern_of(expression: str) -> str | None:
    """``expression`` as a pattern, with $name, $key and $value for its groups."""
    if len(expression) > MAX_PATTERN:
        return None
    found, at = [], 0
    while at < len(expression):
        token = _TOKEN.match(expression, at)
        if token is None:
            return None
        at = token.end()
        found.append(_said(token))
    return "".join(found)


def _said(token: re.Match[str]) -> str:
    if token["group"]:
        return f"${token['name']}"
    if token["space"]:
        return "~"
    return "\n" if token["newline"] else token["escaped"] or token["plain"]


def _edge(field: Mapping[str, Any], side: str) -> str | None:
    """Where a part begins or ends."""
    expression = field.get(f"{side}_pattern")
    if isinstance(expression, str):
        return pattern_of(expression)
    said = field.get(side)
    said = said[0] if isinstance(said, list) and said else said
    return said if isinstance(said, str) and not {"~", "$"} & set(said) else None


def _each(field: Mapping[str, Any], begin: str, end: str) -> ToolFormat | None:
    """All calls are one list of JSON."""
    function = _mapping(_mapping(field.get("transform")).get("function"))
    keys = _key_in(function.get("name")), _key_in(function.get("arguments"))
    if field.get("content") != "json" or None in keys:
        return None
    call = f'{{~"{keys[0]}":~"$name",~"{keys[1]}":~$args~}}'
    return _format(call, open=f"{begin}~[~", between="~,~", close=f"~]~{end}")


def _one(field: Mapping[str, Any], begin: str, end: str) -> ToolFormat | None:
    """Each call stands for itself."""
    function = _mapping(field.get("transform")).get("function")
    between = "~" if field.get("repeats") else None
    kind = field.get("content")
    if function == "{content}" and kind == "json":
        call = f'{begin}~{{~"name":~"$name",~"arguments":~$args~}}~{end}'
        return _format(call, between=between)
    said = _mapping(function)
    names = said.get("name"), said.get("arguments")
    keys = _key_in(names[0], "content."), _key_in(names[1], "content.")
    if kind == "json" and None not in keys:
        call = f'{begin}~{{~"{keys[0]}":~"$name",~"{keys[1]}":~$args~}}~{end}'
        return _format(call, between=between)
    if names != ("{name}", "{content}") or begin.count("$name") != 1:
        return None
    args = _mapping(field.get("content_args"))
    if kind == "xml-inline":
        tags = _tags(args.get("tag_pattern"))
        if tags is None:
            return None
        return _format(f"{begin}~$args~{end}", between=between, arguments=tags)
    if kind != "json":
        return None
    if not args:
        return _format(f"{begin}~$args~{end}", between=between)
    literals = _literals(args)
    call = f"{begin}{{$args}}{end}"
    return None if literals is None else _format(call, between=between, arguments=literals)


def _format(call: str, **more: Any) -> ToolFormat:
    return ToolFormat(name="response_template", call=call, **more)


def _literals(args: Mapping[str, Any]) -> Literals | None:
    quotes = args.get("string_delims")
    if not isinstance(quotes, list) or not all(_is_pair(pair) for pair in quotes) or not quotes:
        return None
    bare = args.get("unquoted_keys") is True
    return Literals(":", "}", tuple(pair[0] for pair in quotes), has_bare_keys=bare)


def _is_pair(pair: object) -> bool:
    """Of equal quotes."""
    if not isinstance(pair, list) or len(pair) != 2 or pair[0] != pair[1]:
        return False
    return isinstance(pair[0], str) and bool(pair[0])


def _tags(expression: object) -> Parameter | None:
    """White space beside a value belongs to the tags."""
    pattern = pattern_of(expression) if isinstance(expression, str) else None
    if pattern is None:
        return None
    parts = re.split(r"\$key|\$value", pattern.replace("~", ""))
    if len(parts) != 3 or pattern.index("$key") > pattern.index("$value") or not all(parts):
        return None
    return Parameter(*parts)


def _key_in(said: object, before: str = "") -> str | None:
    found = (
        re.fullmatch(rf"\{{{re.escape(before)}(\w+)\}}", said) if isinstance(said, str) else None
    )
    return found and found[1]


def _is_text(template: object) -> bool:
    """Whether all of it can be written: JSON may have halves of characters, which no answer has."""
    try:
        json.dumps(template, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
