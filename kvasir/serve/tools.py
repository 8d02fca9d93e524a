"""The tools of a request, whatever its dialect, and from them how its answer is constrained and
read."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.core.params import TokenParams
from kvasir.grammar.constraint import FREE, Constraint, schema_grammar
from kvasir.grammar.ends import refuse_ends
from kvasir.grammar.errors import InvalidGrammar, UnsupportedSchema
from kvasir.grammar.limits import LIMITS, GrammarLimits
from kvasir.grammar.structured import grammar_of
from kvasir.serve.resolved import Ids, Json
from kvasir.serve.text import TextModel
from kvasir.toolcalls.grammar import Choice, Tool, kinds_of, thinking_first, tools_grammar
from kvasir.toolcalls.reading import Reading, bound
from kvasir.toolcalls.table import FORMATS
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.warn import escaped

MAX_TOOLS = 1024
"""That are read at all; how many a request may have is the server's to say."""
TAIL_TOKENS = 16
"""Of a prompt, in which the marker that opens reasoning stands."""
JUDGED_SECONDS = 5.0
"""After which no more tools of a refused grammar are judged: each may take as long as a grammar."""
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


class ToolWish(msgspec.Struct, frozen=True, kw_only=True):
    tools: tuple[Tool, ...]
    descriptions: tuple[str, ...] = ()
    choice: Choice = "auto"
    allowed: tuple[str, ...] | None = None
    """Names of those that may be called; None: all."""
    parallel: bool = True

    def shown(self) -> list[Json]:
        """As templates read them: all, so that equal tools begin equal prompts."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": said,
                    "parameters": {"type": "object", "properties": {}, **tool.schema},
                },
            }
            for tool, said in zip(self.tools, self.descriptions, strict=True)
        ]

    @property
    def callable(self) -> tuple[Tool, ...]:
        if self.allowed is None:
            return self.tools
        return tuple(tool for tool in self.tools if tool.name in self.allowed)


def wish_of(
    functions: Sequence[Mapping[str, Any]],
    where: str,
    *,
    choice: Choice,
    allowed: Sequence[str] | None = None,
    parallel: bool = True,
) -> ToolWish | None:
    """``functions``: each a name, a description, parameters and strict. None without any. Raises
    RequestError (400), which names ``where``."""
    if not functions:
        if choice == "required":
            raise RequestError("tool_choice asks for a call, and there are no tools", param=where)
        return None
    if len(functions) > MAX_TOOLS:
        raise RequestError(_too_many(where, len(functions), MAX_TOOLS), param=where)
    tools = tuple(_tool(function, f"{where}[{i}]") for i, function in enumerate(functions))
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"{where} has the name {twice} twice", param=where)
    unknown = next((name for name in allowed or () if name not in names), None)
    if unknown is not None or (allowed is not None and not allowed):
        said = f"names {escaped(str(unknown))}, which is no tool" if allowed else "allows no tool"
        raise RequestError(f"tool_choice {said}", param="tool_choice")
    descriptions = tuple(str(function.get("description") or "") for function in functions)
    return ToolWish(
        tools=tools,
        descriptions=descriptions,
        choice=choice,
        allowed=None if allowed is None else tuple(allowed),
        parallel=parallel,
    )


def _too_many(where: str, n: int, most: int) -> str:
    return f"{where} has {n} tools, at most {most} are possible"


def _tool(function: Mapping[str, Any], where: str) -> Tool:
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where} needs a name of 1 to 64 letters, digits, '_', '-' and '.'", param=where
        )
    if not isinstance(schema, dict | None):
        raise RequestError(f"{where}: the parameters are no JSON Schema", param=where)
    return Tool(name, _of_object(schema or {}, where), function.get("strict") is True)


def _of_object(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Arguments are an object, whatever else ``schema`` would take."""
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise RequestError(f"{where}: the parameters must be of type object", param=where)
    return {**schema, "type": "object"} if kind != "object" else schema


class Chat(msgspec.Struct, frozen=True):
    """What of a conversation decides how its answer is read and constrained."""

    text: TextModel
    tool_format: str
    wish: ToolWish | None
    params: SamplingParams
    limits: GrammarLimits = LIMITS
    begun: str = ""
    """What the answer goes on with."""

    async def reading(self, prompt: Ids) -> Reading | None:
        """Without the key of its ids. Raises RequestError (400) where tools are wanted and nobody
        knows how the model writes calls."""
        reading = _thinking(self.text, prompt, self.begun)
        wish = self.wish
        if wish is not None and len(wish.tools) > self.limits.n_tools:
            said = _too_many("tools", len(wish.tools), self.limits.n_tools)
            raise RequestError(said, param="tools")
        if wish is None or wish.choice == "none":
            return reading
        _check_bytes(wish.callable, self.limits.n_bytes)
        if self.params.structured_outputs is not None:
            raise RequestError(
                "tools and a structure of the answer exclude each other: send one of them, or "
                'tool_choice "none"',
                param="tools",
            )
        found = await self.text.calls(self.tool_format)
        if found.format is None:
            raise RequestError(
                f"tools: {found.why}; if you know how it writes calls, start the server with "
                f"--tool-format, one of {', '.join(FORMATS)}",
                param="tools",
                code="unsupported_parameter",
            )
        return msgspec.structs.replace(
            reading or Reading(),
            format=found.format,
            must_call=wish.choice == "required",
            kinds=kinds_of(wish.callable),
        )

    async def constraint(self, reading: Reading | None) -> Constraint:
        """Not yet judged. Raises RequestError (400)."""
        wish, marked = self.wish, reading and bound(reading, self.text.tokenizer)
        if self.params.structured_outputs is not None:
            asked = self.params.structured_outputs
            refuse_ends(asked.grammar or "", self.text.tokenizer.ends)
            grammar = await asyncio.to_thread(grammar_of, asked, self.limits)
            return grammar if marked is None else thinking_first(marked, grammar)
        if wish is None:
            return FREE
        found = await self.text.calls(self.tool_format)
        if found.format is None:
            return FREE
        marked = bound(
            msgspec.structs.replace(reading or Reading(), format=found.format), self.text.tokenizer
        )
        parallel = wish.parallel and found.is_parallel
        grammar = await asyncio.to_thread(
            tools_grammar,
            marked,
            wish.callable,
            wish.choice,
            parallel=parallel,
            limits=self.limits,
        )
        if found.history.shown_as is not None:
            return grammar
        said = "the model's chat template does not show tools: the system message names them"
        return msgspec.structs.replace(grammar, warnings=(*grammar.warnings, said))

    async def loosened(
        self,
        reading: Reading | None,
        judge: Callable[[Constraint], Awaitable[None]],
        refusal: RequestError,
    ) -> Constraint:
        """For a grammar that ``judge`` refused with ``refusal``: with any object as arguments of
        the tools whose schemas it refuses alone. Raises the refusal of a strict one, and
        ``refusal`` where there is no such tool, or it is not found soon."""
        wish = self.wish
        if wish is None or not isinstance(refusal, UnsupportedSchema | InvalidGrammar):
            raise refusal
        warnings: list[str] = []
        tools: list[Tool] = []
        began = time.monotonic()
        for tool in wish.tools:
            if time.monotonic() - began > JUDGED_SECONDS:
                raise refusal
            why = await _refused(tool, judge, self.limits)
            if why is not None and tool.strict:
                raise why
            if why is not None:
                warnings.append(f"{tool.name}: any object is taken: {why.message}")
            loose = msgspec.structs.replace(tool, is_loose=True)
            tools.append(tool if why is None else loose)
        if not warnings:
            raise refusal
        grammar = await replace(self, wish=replace(wish, tools=tuple(tools))).constraint(reading)
        return msgspec.structs.replace(grammar, warnings=(*warnings, *grammar.warnings))


def _check_bytes(tools: Sequence[Tool], most: int) -> None:
    """Before anything is made of them. Raises InvalidGrammar: all are one grammar."""
    try:
        size = sum(len(json.dumps(tool.schema)) for tool in tools)
    except RecursionError:
        raise InvalidGrammar("a tool's schema is nested too deeply") from None
    if size > most:
        raise InvalidGrammar(
            f"the schemas of {len(tools)} tools have {size} bytes together, {most} at most"
        )


async def _refused(
    tool: Tool, judge: Callable[[Constraint], Awaitable[None]], limits: GrammarLimits
) -> RequestError | None:
    """Why the library refuses its schema; what is refused before that is loosened already."""
    try:
        grammar = await asyncio.to_thread(
            schema_grammar, {"type": "object", **tool.schema}, limits=limits
        )
    except UnsupportedSchema:
        return None
    try:
        await judge(grammar)
    except (UnsupportedSchema, InvalidGrammar) as error:
        return error
    return None


def _thinking(text: TextModel, prompt: Ids, begun: str) -> Reading | None:
    """How reasoning is told from content, where the template knows any. What is ``begun`` has its
    reasoning before it, unless it begins with that itself: a marker within it is text."""
    thoughts = text.reasoning
    if thoughts is None:
        return None
    if begun.strip():
        begins = bool(thoughts.content) or begun.lstrip().startswith(thoughts.begin)
        is_open = begins and begun.rfind(thoughts.begin) > begun.rfind(thoughts.end)
        return Reading(reasoning=thoughts, is_open=True) if is_open else None
    tail = text.tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special=False).rstrip()
    if tail.endswith(thoughts.end):  # the prompt says that there is none
        return None
    return Reading(reasoning=thoughts, is_open=tail.endswith(thoughts.begin))


def keyed(reading: Reading, prompts: Sequence[Ids], params: Sequence[TokenParams]) -> Reading:
    """With the key that ids of calls are made from."""
    if reading.format is None:
        return reading
    said = msgspec.msgpack.encode((prompts, [param.seed for param in params]))
    return msgspec.structs.replace(reading, key=hashlib.blake2b(said, digest_size=16).hexdigest())
