"""A constraint as one text, which the engine and the token log carry.

The text is a grammar of the llguidance library as JSON; everything that a client may write (JSON
Schema, regular expression, choice, GBNF, Lark) becomes one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from kvasir.grammar.errors import InvalidGrammar
from kvasir.grammar.gbnf import is_gbnf, lark_of
from kvasir.grammar.limits import LIMITS, GrammarLimits
from kvasir.grammar.schema import prepare

SPACES = r"[ \n\r\t]{0,40}"
"""White space between the parts of JSON: endless blanks are what small models run away with most
often."""
ESCAPES = 'nrbtf\\"'
_CONTROLS = re.compile(r"\\((u00|x\{?)[01]|u007f)")
"""In JSON or in a regular expression, one of the 33 that have no escape of their own."""


class Constraint(msgspec.Struct, frozen=True):
    """``text`` is a function of what was asked for, so equal constraints share what is compiled."""

    text: str
    warnings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Names what is compiled from it."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()


FREE = Constraint("")
"""Asks for nothing."""


def schema_grammar(
    schema: object,
    *,
    strict: bool = False,
    spaces: str | None = SPACES,
    is_closed: bool = False,
    limits: GrammarLimits = LIMITS,
) -> Constraint:
    """JSON that is valid against ``schema``; ``spaces`` is the regular expression of white space
    between its parts, None for none. ``strict`` and ``is_closed`` are those of ``prepare``. Raises
    UnsupportedSchema and InvalidGrammar."""
    check_size(dumped(schema), "the schema", limits)
    prepared = prepare(schema, strict=strict, is_closed=is_closed, limits=limits)
    whole = {**prepared.schema, "x-guidance": guidance(prepared.schema, spaces)}
    return Constraint(_text({"json_schema": whole}), prepared.warnings)


def object_grammar(spaces: str | None = SPACES) -> Constraint:
    """Any JSON object."""
    return schema_grammar({"type": "object"}, spaces=spaces)


def regex_grammar(pattern: str, limits: GrammarLimits = LIMITS) -> Constraint:
    """The whole answer matches ``pattern``, in the syntax of Rust's regex crate: no look-around,
    no back references."""
    check_size(pattern, "the regular expression", limits)
    return Constraint(_text({"lark_grammar": f"start: {lark_regex(pattern)}"}))


def choice_grammar(choices: Sequence[str], limits: GrammarLimits = LIMITS) -> Constraint:
    """The answer is one of ``choices``."""
    if not choices or len(choices) > limits.n_values:
        raise InvalidGrammar(f"choice: {len(choices)} strings, 1 to {limits.n_values} are possible")
    if not all(choices):
        raise InvalidGrammar("choice: an empty string is no choice")
    check_size("".join(choices), "choice", limits)
    written = " | ".join(map(json.dumps, dict.fromkeys(choices)))
    return Constraint(_text({"lark_grammar": f"start: CHOICE\nCHOICE: {written}"}))


def lark_grammar(text: str, limits: GrammarLimits = LIMITS) -> Constraint:
    """Lark, in llguidance's variant."""
    check_size(text, "the grammar", limits)
    return Constraint(_text({"lark_grammar": text}))


def text_grammar(text: str, limits: GrammarLimits = LIMITS) -> Constraint:
    """GBNF (llama.cpp) or Lark, whichever ``text`` is. Raises InvalidGrammar."""
    check_size(text, "the grammar", limits)
    if not is_gbnf(text):
        return lark_grammar(text, limits)
    try:
        made = lark_of(text)
    except RecursionError:
        raise InvalidGrammar("the grammar is nested too deeply") from None
    except Exception as error:
        raise InvalidGrammar(f"the grammar is no GBNF: {error}") from None
    return lark_grammar(made, limits)


def guidance(schema: object, spaces: str | None = SPACES) -> dict[str, Any]:
    """How the library is to write JSON of ``schema``, a prepared one; ``spaces`` as above.

    One spelling for each character, so that a listed name is always known as such. Then there is
    none for control characters: where ``schema`` speaks of some, every escape stays.
    """
    blanks = {"whitespace_flexible": False} if spaces is None else {"whitespace_pattern": spaces}
    has_controls = _CONTROLS.search(dumped(schema)) is not None
    return blanks if has_controls else {**blanks, "json_allowed_escapes": ESCAPES}


def dumped(schema: object) -> str:
    """As JSON. Raises InvalidGrammar."""
    try:
        return json.dumps(schema)
    except RecursionError:
        raise InvalidGrammar("the schema is nested too deeply") from None


def _text(grammar: dict[str, Any]) -> str:
    return json.dumps({"grammars": [grammar]}, ensure_ascii=False, separators=(",", ":"))


def lark_regex(pattern: str) -> str:
    """``pattern`` between slashes."""
    escaped, is_escape = [], False
    for char in pattern:
        if char == "\n":
            char = "n" if is_escape else "\\n"
        escaped.append("\\/" if char == "/" and not is_escape else char)
        is_escape = char == "\\" and not is_escape
    return "/" + "".join(escaped) + "/"


def check_size(text: str, what: str, limits: GrammarLimits) -> None:
    """Raises InvalidGrammar."""
    size = len(text.encode("utf-8", "replace"))
    if size > limits.n_bytes:
        raise InvalidGrammar(f"{what} has {size} bytes, {limits.n_bytes} at most")
