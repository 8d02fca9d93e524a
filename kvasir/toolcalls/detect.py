"""Which format a model's chat template writes: the one whose parser reads back what it rendered."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.messages import DEFAULT, ChatMessage, History, PastCall, shown_tools
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.format import FIELDS, Reasoning, ToolFormat
from kvasir.toolcalls.grammar import Tool, kinds_of
from kvasir.toolcalls.parser import read_message
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.response import format_of, reasoning_in
from kvasir.toolcalls.table import FORMATS, REASONING

_SCHEMA = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "description": "where"},
        "count": {"type": "integer", "description": "how many"},
    },
    "required": ["place", "count"],
}
_TOOLS = tuple(
    {
        "type": "function",
        "function": {"name": name, "description": "probe", "parameters": _SCHEMA},
    }
    for name in ("probe_one", "probe_two")
)
_READS = kinds_of([Tool(name, _SCHEMA) for name in ("probe_one", "probe_two")])
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("probe_one", {"place": 'a "b" {c}', "count": 3}),
    ("probe_two", {"place": "d", "count": -1}),
)
_ASKED = {"role": "user", "content": "Question?"}


_SAID = "the model's response_template says so"
_TOOL_NAMES = ("tools", "xml_tools")
_MARKER = re.compile(r"<[^\s\"'<>]{2,}>|\[[A-Z_/]{3,}\]")


class Detected(msgspec.Struct, frozen=True):
    format: ToolFormat | None
    why: str
    history: History = DEFAULT
    is_parallel: bool = True
    """Whether the template writes more than one call of a turn."""


def reasoning_of(template: ChatTemplate) -> Reasoning | None:
    """The markers that the model's response template names, or that its chat template speaks of or
    writes."""
    said = reasoning_in(template.response)
    if said is not None:
        return next((one for one in REASONING if one.begin == said.begin), said)
    texts = [template.text or "", _render(template, [_ASKED], True) or ""]
    return next((one for text in texts for one in REASONING if _speaks_of(one, text)), None)


def special_names(tokenizer: Tokenizer) -> list[str]:
    """Of tokens that no text spells."""
    pieces = (tokenizer.piece(token) for token in sorted(tokenizer.special_ids))
    return [piece for piece in pieces if piece]


def _speaks_of(one: Reasoning, text: str) -> bool:
    begins = (segment.begin for segment in one.content)
    return all(marker in text for marker in (one.begin, one.end, *begins))


def detect(template: ChatTemplate, names: Sequence[str], asked: str = "auto") -> Detected:
    """``names``: those of ``special_names``; ``asked``: a name in FORMATS, or "auto". Renders a
    few short conversations."""
    shown_as = _shown_as(template)
    probes = list(_probes(template, shown_as, reasoning_of(template)))
    if asked != "auto":
        return _asked_for(FORMATS[asked], probes, shown_as, names)
    said = format_of(template.response)
    why = "reads back what the chat template writes"
    if said is not None and (read := _read_by(said, probes, names)):
        return _found(_known(said), f"{_SAID}, and {why}", read)
    for form in FORMATS.values():
        if read := _read_by(form, probes, names):
            return _found(form, why, read)
    if _writes_calls(template, shown_as):
        return Detected(None, "no known format reads what the model's chat template writes")
    if shown_as is None:
        return Detected(None, "the model's chat template does not show tools")
    if said is not None:
        history = History(shown_as=shown_as, is_written=True)
        return Detected(_known(said), _SAID, history, said.between is not None)
    return _hinted(template, names, shown_as)


def _known(said: ToolFormat) -> ToolFormat:
    """The entry of the table that is the same but for its name."""
    return next((one for one in FORMATS.values() if replace(said, name=one.name) == one), said)


def _read_by(form: ToolFormat, probes: Sequence[_Probe], names: Sequence[str]) -> list[_Probe]:
    return [probe for probe in probes if probe.is_read(form, names)]


def _found(form: ToolFormat, why: str, read: Sequence[_Probe]) -> Detected:
    """``read``: what it reads back."""
    best = max(read, key=lambda probe: probe.n_calls)
    return Detected(form, why, best.history, best.n_calls > 1)


def _asked_for(
    form: ToolFormat, probes: Sequence[_Probe], shown_as: str | None, names: Sequence[str]
) -> Detected:
    if read := _read_by(form, probes, names):
        return _found(form, "--tool-format", read)
    history = History(shown_as=shown_as, is_written=True)
    return Detected(form, "--tool-format", history, form.between is not None)


def _hinted(template: ChatTemplate, names: Sequence[str], shown_as: str) -> Detected:
    """By the markers that the template shows beside the tools, or that are tokens of their own."""
    prompt = _render(template, [_ASKED], True, shown_as=shown_as) or ""
    for form in FORMATS.values():
        markers = {found for text in form.texts for found in _MARKER.findall(_plain(text))}
        if markers and all(marker in prompt or marker in names for marker in markers):
            why = "the chat template shows its markers, and leaves past calls out"
            history = History(shown_as=shown_as, is_written=True)
            return Detected(form, why, history, form.between is not None)
    return Detected(None, "the model's chat template writes no calls, and shows no known markers")


def _plain(text: str) -> str:
    """A pattern, its fields as spaces."""
    return FIELDS.sub(" ", text)


class _Probe(msgspec.Struct, frozen=True):
    text: str
    """The turn of the assistant, as the template writes it."""
    history: History
    n_calls: int
    reasoning: Reasoning | None
    is_open: bool

    def is_read(self, form: ToolFormat, names: Sequence[str]) -> bool:
        reading = Reading(form, self.reasoning, self.is_open, _READS)
        text = self.text
        if self.reasoning is not None and not self.is_open:  # some write its end alone
            text = text.lstrip().removeprefix(self.reasoning.end)
        message = read_message(reading, text)
        rest = message.content
        for name in names:
            rest = rest.replace(name, "")
        found = [(call.name, _loaded(call.arguments)) for call in message.calls]
        return not rest.strip() and found == list(_CALLS[: self.n_calls])


def _probes(
    template: ChatTemplate, shown_as: str | None, reasoning: Reasoning | None
) -> Iterator[_Probe]:
    begins = _render(template, [_ASKED], True, shown_as=shown_as)
    for as_text, is_null in itertools.product((False, True), (False, True)):
        history = History(as_text=as_text, is_null=is_null, shown_as=shown_as)
        for n_calls in (2, 1):
            begun, whole = begins, _turn(template, history, n_calls)
            if begun is None or whole is None:
                continue
            is_open = reasoning is not None and begun.rstrip().endswith(reasoning.begin)
            if not whole.startswith(begun) and reasoning is not None:
                begun, is_open = _without(begun, reasoning), False
            if whole.startswith(begun):
                yield _Probe(whole[len(begun) :], history, n_calls, reasoning, is_open)


def _writes_calls(template: ChatTemplate, shown_as: str | None) -> bool:
    history, name = History(shown_as=shown_as), _CALLS[0][0]
    turns = [_turn(template, history, n_calls) or "" for n_calls in (0, 1)]
    return turns[0].count(name) < turns[1].count(name)


def _without(prompt: str, reasoning: Reasoning) -> str:
    """``prompt`` without reasoning that it opens at its end, or opens and closes."""
    begin, end = re.escape(reasoning.begin), re.escape(reasoning.end)
    return re.sub(rf"\s*({begin}\s*)?({end})?\s*$", "", prompt)


def _turn(template: ChatTemplate, history: History, n_calls: int) -> str | None:
    calls = tuple(
        PastCall(f"call0000{i}", name, given) for i, (name, given) in enumerate(_CALLS[:n_calls])
    )
    said = ChatMessage("assistant", "", calls).said(history)
    return _render(template, [_ASKED, said], False, shown_as=history.shown_as)


def _shown_as(template: ChatTemplate) -> str | None:
    """The name of the variable in which the template looks for tools."""
    plain = _render(template, [_ASKED], True)
    for name in _TOOL_NAMES:
        shown = _render(template, [_ASKED], True, shown_as=name)
        if shown is not None and shown != plain and _CALLS[0][0] in shown:
            return name
    return None


def _render(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, object]],
    adds_prompt: bool,
    *,
    shown_as: str | None = None,
) -> str | None:
    """None where the template refuses."""
    variables = {} if shown_as is None else shown_tools(_TOOLS, shown_as)
    try:
        return template.render(messages, adds_prompt, **variables)
    except RequestError:
        return None


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
