"""Ollama's Modelfiles: FROM, PARAMETER, SYSTEM, MESSAGE and LICENSE. What cannot be done is refused
with its line, and nothing is made then."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from kvasir.core.errors import ModelError
from kvasir.core.params import Bounds, DrawParams
from kvasir.library.stored import Defaults
from kvasir.validation.sampling import fields_of

_LINE = re.compile(r"\s*([A-Za-z]+)(?:[ \t]+(.*))?$", re.DOTALL)
_QUOTES = '"""'
ROLES = ("system", "user", "assistant")


class KnownParameter(msgspec.Struct, frozen=True):
    name: str
    """Of ``SamplingParams``; ``max_model_len`` is the engine's."""
    kind: Callable[[Any], Any]
    is_list: bool = False
    bounds: Bounds = Bounds(-math.inf)


LENGTH = "max_model_len"
_OTHERS = {
    "seed": KnownParameter("seed", int),
    "num_predict": KnownParameter("max_tokens", int),
    "stop": KnownParameter("stop", str, is_list=True),
    "num_ctx": KnownParameter(LENGTH, int, bounds=Bounds(1)),
}
REFUSED = {
    "ADAPTER": "adapters are not supported: merge it into the model",
    "TEMPLATE": "chat templates are those of the model's file (kvasir inspect template): put it "
    "into the file as Jinja",
    "REQUIRES": "versions of other programs mean nothing here: leave it out",
    "PARSER": "reasoning and tool calls are read as the model's template writes them: leave it out",
    "RENDERER": "chat templates are those of the model's file: leave it out",
}


@cache
def known_parameters() -> dict[str, KnownParameter]:
    """By Ollama's names."""
    numbers = {
        field.peers.name("ollama", field.name): KnownParameter(
            field.name, field.kind, bounds=field.bounds or Bounds(-math.inf)
        )
        for field in fields_of(DrawParams)
        if field.peers.default("ollama") is not None
    }
    return numbers | _OTHERS


def read_parameters(said: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """The same of JSON: fields of ``SamplingParams``, and the longest context, if one is said.
    Raises ModelError."""
    found: dict[str, Any] = {}
    for word, value in said.items():
        known = known_parameters().get(word)
        if known is None:
            raise _invalid(f"{word[:64]!r} is not known: use {', '.join(known_parameters())}")
        try:
            _put(known, _of_json(known, value), found)
        except ValueError:
            kind = "a text, or a list of texts" if known.is_list else "a number"
            raise _invalid(f"{word} is {str(value)[:60]!r}, which is not {kind}") from None
    return found, found.pop(LENGTH, None)


def _of_json(known: KnownParameter, value: Any) -> Any:
    """Raises ValueError."""
    if known.is_list:
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError
        return texts
    if isinstance(value, bool) or not isinstance(value, int | float) or known.kind(value) != value:
        raise ValueError
    return known.kind(value)


def _put(known: KnownParameter, value: Any, found: dict[str, Any]) -> None:
    """``value``: of a list several. Raises ValueError."""
    if known.is_list:
        found.setdefault(known.name, []).extend(value)
    elif not math.isfinite(value) or not known.bounds.holds(value):
        raise ValueError
    elif known.name == "max_tokens" and value < 0:
        found.pop(known.name, None)  # as many as there is room for, which is the default
    else:
        found[known.name] = value


def _invalid(why: str) -> ModelError:
    return ModelError(f"parameters: {why}", code="invalid_parameters")


class Modelfile(msgspec.Struct, frozen=True):
    base: str
    defaults: Defaults
    license: str = ""


class Instruction(msgspec.Struct, frozen=True):
    line: int
    word: str
    value: str


def read_modelfile(text: str, name: str = "Modelfile") -> Modelfile:
    """Raises ModelError with the line."""
    base, system, license = "", "", ""
    parameters: dict[str, Any] = {}
    messages: list[tuple[str, str]] = []
    for said in _instructions(text, name):
        if said.word == "FROM" and not base:
            base = said.value
        elif said.word == "PARAMETER":
            _parameter(said, parameters, name)
        elif said.word == "SYSTEM":
            system = said.value
        elif said.word == "LICENSE":
            license += said.value
        elif said.word == "MESSAGE":
            messages.append(_message(said, name))
        else:
            known = "FROM may stand once" if said.word == "FROM" else REFUSED.get(said.word)
            why = known or "use FROM, PARAMETER, SYSTEM, MESSAGE or LICENSE"
            raise _refused(name, said.line, f"{said.word}: {why}")
    if not base:
        raise _refused(name, 1, "it has no FROM, which names a model or a file")
    length = parameters.pop(LENGTH, None)
    return Modelfile(base, Defaults(parameters, system, tuple(messages), length), license)


def _instructions(text: str, name: str) -> Iterator[Instruction]:
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        first, at = at, at + 1
        if not lines[first].strip() or lines[first].lstrip().startswith("#"):
            continue
        found = _LINE.match(lines[first])
        if found is None or found[2] is None or not found[2].strip():
            raise _refused(name, first + 1, f"{lines[first].strip()[:60]!r} is no instruction")
        head, value = found[2].split(_QUOTES, 1) if _QUOTES in found[2] else ("", None)
        if value is None:
            yield Instruction(first + 1, found[1].upper(), _unquoted(found[2].strip()))
            continue
        parts = [value]
        while _QUOTES not in parts[-1]:
            if at == len(lines):
                raise _refused(name, first + 1, f"{_QUOTES} has no end")
            parts.append(lines[at])
            at += 1
        parts[-1], _, rest = parts[-1].partition(_QUOTES)
        if rest.strip():
            raise _refused(name, at, f"{rest.strip()[:60]!r} stands behind {_QUOTES}")
        yield Instruction(first + 1, found[1].upper(), head + "\n".join(parts))


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return text[1:-1] if is_quoted else text


def _parameter(said: Instruction, parameters: dict[str, Any], name: str) -> None:
    word, _, value = said.value.partition(" ")
    known = known_parameters().get(word.lower())
    if known is None:
        names = ", ".join(known_parameters())
        raise _refused(name, said.line, f"PARAMETER {word}: use one of {names}")
    try:
        read = known.kind(_unquoted(value.strip()))
        _put(known, [read] if known.is_list else read, parameters)
    except ValueError:
        raise _refused(
            name, said.line, f"PARAMETER {word}: {value.strip()[:60]!r} is no number for it"
        ) from None


def _message(said: Instruction, name: str) -> tuple[str, str]:
    role, _, text = said.value.partition(" ")
    if role.lower() not in ROLES:
        raise _refused(name, said.line, f"MESSAGE {role[:20]}: a role is {', '.join(ROLES)}")
    return role.lower(), text.strip()


def _refused(name: str, line: int, why: str) -> ModelError:
    return ModelError(f"{name}:{line}: {why}", code="invalid_modelfile")
