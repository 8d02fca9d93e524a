"""From a format and a request's tools to the grammar of the answer.

Reasoning and text before a call are free; from the marker on, tool and arguments are those that
were asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from kvasir.grammar.constraint import Constraint, lark_grammar
from kvasir.grammar.errors import UnsupportedSchema
from kvasir.grammar.limits import LIMITS, GrammarLimits
from kvasir.grammar.schema import SearchEfforts, prepare
from kvasir.toolcalls.flat import at_root, idle_keywords, properties_of
from kvasir.toolcalls.format import (
    Kind,
    Parameter,
    Part,
    Reasoning,
    ToolFormat,
    parts_of,
)
from kvasir.toolcalls.literal_grammar import LiteralRules, not_kept
from kvasir.toolcalls.names import check_names
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.rules import ENDS, RuleLines, is_mark, json_of, regex
from kvasir.toolcalls.tagged_grammar import TaggedRules

Choice = Literal["none", "auto", "required"]
_HEAD = "%llguidance {}"


class Tool(msgspec.Struct, frozen=True):
    name: str
    schema: dict[str, Any]
    """Of its arguments."""
    strict: bool = False
    is_loose: bool = False
    """Whether any object is taken, as its schema cannot be kept to."""


def kinds_of(tools: Sequence[Tool]) -> dict[str, dict[str, Kind]]:
    """How formats with tags write each parameter, by name."""
    return {
        tool.name: {key: _kind(value) for key, value in properties_of(at_root(tool.schema)).items()}
        for tool in tools
    }


def tools_grammar(
    reading: Reading,
    tools: Sequence[Tool],
    choice: Choice,
    *,
    parallel: bool = True,
    limits: GrammarLimits = LIMITS,
) -> Constraint:
    """``tools``: those that may be called. Raises UnsupportedSchema and InvalidGrammar."""
    if reading.format is None:
        raise ValueError("there is no format to write calls in")
    return _GrammarWriter(reading, reading.format, limits).whole(tools, choice, parallel)


def thinking_first(reading: Reading, answer: Constraint) -> Constraint:
    """``answer`` behind reasoning that is free."""
    if reading.reasoning is None or not answer.text:
        return answer
    writer = _GrammarWriter(reading, None)
    parts = json.loads(answer.text)["grammars"]
    first = {"lark_grammar": writer.thinking_before("@answer")}
    whole = [first, {**parts[0], "name": "answer"}, *parts[1:]]
    text = json.dumps({"grammars": whole}, ensure_ascii=False, separators=(",", ":"))
    return msgspec.structs.replace(answer, text=text)


class _GrammarWriter:
    def __init__(
        self, reading: Reading, form: ToolFormat | None, limits: GrammarLimits = LIMITS
    ) -> None:
        self._reading = reading
        self._format = form
        self._limits = limits
        self._efforts = SearchEfforts()
        self._rules = RuleLines(reading.marks)
        self._arguments = _rules_of(form, self._rules)
        self._warnings: list[str] = []

    def thinking_before(self, what: str) -> str:
        """The grammar of reasoning that is free, and then ``what``."""
        thoughts = self._reading.reasoning
        last = next(
            (one.begin for one in (thoughts.content if thoughts else ()) if not one.end), ""
        )
        before = f"{self._thoughts()}{self._parts_before()}SP {self._rules.literal(last)}"
        start = f"start: {before} SP {what}"
        return "\n".join((_HEAD, start, *self._rules.lines, *ENDS))

    def whole(self, tools: Sequence[Tool], choice: Choice, parallel: bool) -> Constraint:
        form = self._format
        if form is None:
            raise ValueError("there is no format to write calls in")
        start = f"start: {self._thoughts()}{self._parts_before()}"
        if choice == "none":
            start += self._free()
        else:
            start += self._calls(form, tools, parallel, is_free=choice == "auto")
        rules = "\n".join((_HEAD, start, *self._rules.lines, *ENDS))
        return Constraint(lark_grammar(rules, self._limits).text, tuple(self._warnings))

    def _thoughts(self) -> str:
        """The beginning of the start rule."""
        thoughts = self._reading.reasoning
        if thoughts is None:
            return ""
        self._rules.until("thought_rest", thoughts.end)
        glue = f" SP {self._rules.literal(thoughts.glue)}" if thoughts.glue else ""
        self._rules.add(f"thought: thought_rest{glue}")
        self._rules.add(f"thoughts: SP {self._rules.literal(thoughts.begin)} thought")
        return "thought " if self._reading.is_open else "thoughts? "

    def _parts_before(self) -> str:
        """Content before the last part, where the model names each."""
        thoughts = self._reading.reasoning
        if thoughts is None or not thoughts.content:
            return ""
        glue = f" SP {self._rules.literal(thoughts.glue)}" if thoughts.glue else ""
        ended = [(i, one) for i, one in enumerate(thoughts.content) if one.end]
        for i, one in ended:
            self._rules.until(f"part_{i}_rest", one.end)
            begin = self._rules.literal(one.begin)
            self._rules.add(f"part_{i}: SP {begin} part_{i}_rest{glue}")
        parts = " | ".join(f"part_{i}" for i, _ in ended)
        return f"(({parts}) thoughts?)* " if parts else ""

    def _calls(
        self, form: ToolFormat, tools: Sequence[Tool], parallel: bool, *, is_free: bool
    ) -> str:
        first, after = _around(form.first)
        behind = self._tools("tool", tools, form, after)
        if parallel and form.next:
            behind += f" ({self._parts(_around(form.next)[0])} tool)*"
        behind += f" {self._parts(form.last)}"
        others = []
        for n, pattern in enumerate(form.starts):
            before, rest = _around(parts_of(pattern))
            others.append(f"SP {self._parts(before)} {self._tools(f'other{n}', tools, form, rest)}")
        thoughts = self._reading.reasoning
        if not is_free or (thoughts is not None and thoughts.content):
            last = [self._free()] if is_free else []
            return f"({' | '.join([*last, f'SP {self._parts(first)} {behind}', *others])})"
        free = self._free()
        head = self._parts(() if form.at_start else first[1:])
        return f"({' | '.join([free, f'head {head} {behind}', *others])})"

    def _tools(
        self, name: str, tools: Sequence[Tool], form: ToolFormat, after: Sequence[Part]
    ) -> str:
        """The rule of a tool's name and what follows."""
        self._rules.add(f"{name}: " + " | ".join(f"{name}_{i}" for i in range(len(tools))))
        for i, tool in enumerate(tools):
            self._rules.add(f"{name}_{i}: {self._tool(tool, form, after)}")
        return name

    def _free(self) -> str:
        """Text in which no call begins; beside it, the rule ``head``: text up to a call."""
        thoughts = self._reading.reasoning
        if thoughts is not None and thoughts.content:
            return self._last_part(thoughts)
        form = self._format
        if form is None:
            return "ALL"
        add = self._rules.add
        barred = []
        if thoughts is not None and not self._reading.is_open and not is_mark(thoughts.begin):
            barred.append(rf"~/[ \n\r\t]*{regex(thoughts.begin)}(.|\n)*/")
        text = " & ".join(("ALL", *barred))
        add("free: FREE")
        if form.at_start:
            begin = "".join(
                r"[ \n\r\t]{0,8}" if p == "~" else regex(p) for p in _around(form.first)[0]
            )
            add(f"head: /[ \\n\\r\\t]{{0,8}}{begin}/")
            add(f"FREE: {text} & ~/[ \\n\\r\\t]*{begin}(.|\\n)*/")
        elif is_mark(form.trigger):
            add(f"head: FREE {self._rules.literal(form.trigger)}")
            add(f"FREE: {text}")
        else:
            self._rules.until("head", form.trigger, "BEFORE")
            add(f"BEFORE: {text}")
            add(f"FREE: {text} & ~/(.|\\n)*{regex(form.trigger)}(.|\\n)*/")
        return "free"

    def _last_part(self, thoughts: Reasoning) -> str:
        """Of a model that names each part of its answer."""
        last = [one for one in thoughts.content if not one.end] or list(thoughts.content)
        for i, one in enumerate(last):
            rest = self._rules.until(f"last_{i}_rest", one.end) if one.end else "ALL"
            self._rules.add(f"last_{i}: SP {self._rules.literal(one.begin)} {rest}")
        return f"({' | '.join(f'last_{i}' for i in range(len(last)))})"

    def _tool(self, tool: Tool, form: ToolFormat, after: Sequence[Part]) -> str:
        schema, kinds = self._schema(tool), kinds_of([tool])[tool.name]
        check_names(tool.name, kinds, form)
        if self._arguments is None:
            written = f"%json {json_of(schema or {'type': 'object'})}"
        elif schema is None:
            written = self._arguments.anything(kinds)
        else:
            written = self._kept(tool, schema, kinds, self._arguments)
        parts = [tool.name, *after]
        if after and after[0][0] not in "~$":
            parts = [tool.name + after[0], *after[1:]]
        return self._parts(parts).replace("$args", written)

    def _kept(
        self,
        tool: Tool,
        schema: dict[str, Any],
        kinds: Mapping[str, Kind],
        rules: LiteralRules | TaggedRules,
    ) -> str:
        """Arguments that are no JSON, as far as they keep to ``schema``."""
        schema = at_root(schema)
        schema = {**schema, "properties": properties_of(schema)}
        for key in idle_keywords(schema):
            self._warn(tool, key, not_kept(key))
        try:
            written = rules.arguments(schema, kinds)
        except UnsupportedSchema as error:
            self._loosen(tool, error)
            rules.idle.clear()
            return rules.anything(kinds)
        for said, keyword in rules.idle.items():
            self._warn(tool, keyword, said)
        rules.idle.clear()
        return written

    def _warn(self, tool: Tool, keyword: str, said: str) -> None:
        """Raises UnsupportedSchema where the tool is strict."""
        if tool.strict:
            raise UnsupportedSchema(f"{tool.name}: {said}", keyword)
        self._warnings.append(f"{tool.name}: {said}")

    def _schema(self, tool: Tool) -> dict[str, Any] | None:
        """Prepared; None: any object is taken."""
        if tool.is_loose:
            return None
        whole = {"type": "object", **tool.schema}
        try:
            prepared = prepare(
                whole, strict=tool.strict, limits=self._limits, efforts=self._efforts
            )
        except UnsupportedSchema as error:
            self._loosen(tool, error)
            return None
        self._warnings += [f"{tool.name}: {warning}" for warning in prepared.warnings]
        return prepared.schema

    def _loosen(self, tool: Tool, why: UnsupportedSchema) -> None:
        """Raises ``why`` where the tool is strict."""
        if tool.strict:
            raise why
        self._warnings.append(f"{tool.name}: any object is taken: {why.message}")

    def _parts(self, parts: Sequence[Part]) -> str:
        words = {"~": "SP", "$id": "/[a-zA-Z0-9]{9}/", "$index": "/[0-9]{1,3}/", "$args": "$args"}
        return " ".join(words.get(part) or self._rules.literal(part) for part in parts)


def _around(parts: Sequence[Part]) -> tuple[Sequence[Part], Sequence[Part]]:
    """Before and after the name."""
    at = parts.index("$name")
    return parts[:at], parts[at + 1 :]


def _kind(schema: Any) -> Kind:
    if not isinstance(schema, dict):
        return "json"
    words = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(words, list) and words:
        return "text" if all(isinstance(word, str) for word in words) else "json"
    return "text" if schema.get("type") == "string" else "json"


def _rules_of(form: ToolFormat | None, rules: RuleLines) -> LiteralRules | TaggedRules | None:
    """None where arguments are JSON."""
    said = None if form is None else form.arguments
    if isinstance(said, Parameter):
        return TaggedRules(said, rules)
    return None if said is None else LiteralRules(said, rules)
