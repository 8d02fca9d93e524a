"""The text of ``kvasir inspect template``."""

from __future__ import annotations

from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.templates import DEFAULT
from kvasir.toolcalls.detect import Detected, detect, reasoning_of, special_names
from kvasir.toolcalls.format import Reasoning
from kvasir.toolcalls.writing import written
from kvasir.weights.default import default_model
from kvasir.weights.source import open_model

_EXAMPLE = ("name", {"text": "word", "number": 1})


def template_text(path: str | None) -> str:
    """Which format of tool calls and which markers of reasoning a server of the model would take.
    Raises ModelError."""
    source = open_model(path if path is not None else default_model())
    tokenizer = load_tokenizer(source)
    template = ChatTemplate(source, tokenizer)
    lines = [f"{source.name}  ({source.kind}, {source.path})"]
    if template.problem is not None:
        lines.append(f"chat template  {template.problem}")
    else:
        lines.append(f"chat template  {len(template.text or '')} characters")
        lines += _variant_lines(template)
        lines += _reasoning_lines(reasoning_of(template))
        lines += _call_lines(detect(template, special_names(tokenizer)))
    return "\n".join(lines) + "\n"


def _reasoning_lines(found: Reasoning | None) -> list[str]:
    said = "none: the template knows no markers" if found is None else _shown(found)
    return [f"reasoning      {said}"]


def _shown(found: Reasoning) -> str:
    return f"{found.begin} … {found.end}: the template has these markers"


def _call_lines(found: Detected) -> list[str]:
    form, history = found.format, found.history
    if form is None:
        return [f"tool calls     none: {found.why}"]
    name, arguments = _EXAMPLE
    lines = written(form, [(name, arguments)], "\n").splitlines()
    past = "written by Kvasir into the content" if history.is_written else "written by the template"
    given = "JSON text" if history.as_text else "mappings"
    shown = f"variable {history.shown_as!r}" if history.shown_as else "system message, by Kvasir"
    return [
        f"tool calls     {form.name}: {found.why}",
        f"calls a turn   {'any number' if found.is_parallel else 'one'}",
        f"past calls     {past}, arguments as {given}",
        f"tools          {shown}",
        "a call",
        *(f"    {line}" for line in lines),
    ]


def _variant_lines(template: ChatTemplate) -> list[str]:
    """Of a model with several templates."""
    others = [name for name in template.texts if name != DEFAULT]
    return [f"    also {name}  {len(template.texts[name])} characters" for name in others]
