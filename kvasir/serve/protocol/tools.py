"""Tools in OpenAI's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvasir.core.errors import RequestError
from kvasir.serve.tools import ToolWish, wish_of
from kvasir.toolcalls.grammar import Choice
from kvasir.validation.warn import escaped

Told = tuple[Choice, tuple[str, ...] | None]
"""Whether tools are called, and which may be."""


def read_tools(
    tools: Sequence[Any], choice: str | Mapping[str, Any] | None, *, parallel: bool
) -> ToolWish | None:
    """Of chat completions. Raises RequestError (400)."""
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    told, allowed = read_choice(choice)
    return wish_of(functions, "tools", choice=told, allowed=allowed, parallel=parallel)


def read_flat_tools(
    tools: Sequence[Any], choice: str | Mapping[str, Any] | None, *, parallel: bool
) -> ToolWish | None:
    """Of Responses, whose tools have the fields of their functions. Raises RequestError (400)."""
    for i, tool in enumerate(tools):
        kind = tool.get("type")
        if kind != "function":
            raise RequestError(
                f"tools[{i}] is of type {escaped(str(kind))!r}: only functions are supported",
                param=f"tools[{i}].type",
                code="unsupported_parameter",
            )
    told, allowed = read_choice(choice)
    return wish_of(tools, "tools", choice=told, allowed=allowed, parallel=parallel)


def _function(tool: Any, where: str) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
        raise RequestError(f"{where} must be of type function, and have one", param=where)
    return function


def read_choice(choice: str | Mapping[str, Any] | None) -> Told:
    """Raises RequestError (400)."""
    if choice is None:
        return "auto", None
    if choice in ("none", "auto", "required"):
        return choice, None  # type: ignore[return-value]
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        if kind == "function":
            return "required", (_name(choice),)
        if kind == "allowed_tools":
            return _allowed(choice.get("allowed_tools", choice))
    raise RequestError(
        "tool_choice must be none, auto, required, a function or allowed_tools",
        param="tool_choice",
    )


def _allowed(said: Any) -> Told:
    tools = said.get("tools") if isinstance(said, Mapping) else None
    mode = said.get("mode", "auto") if isinstance(said, Mapping) else None
    if not isinstance(tools, list) or mode not in ("auto", "required"):
        raise RequestError(
            "tool_choice.allowed_tools needs a mode, auto or required, and tools",
            param="tool_choice",
        )
    return mode, tuple(_name(tool) for tool in tools)


def _name(said: Any) -> str:
    function = said.get("function", said) if isinstance(said, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RequestError("tool_choice names no function", param="tool_choice")
    return name
