"""Tokens that end an answer, in a grammar that a client wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kvasir.grammar.errors import InvalidGrammar
from kvasir.grammar.gbnf import is_gbnf

_LARK = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<token><(?:\[[^\]\n]*\]|[^<>\s]+)>)'
)
"""Texts, comments and expressions, in which nothing is a token, and tokens."""
_IDS = re.compile(r"(\d+)(?:-(\d+))?")


def refuse_ends(text: str, ends: Mapping[str, int]) -> None:
    """``ends``: ids that end an answer, by what they are called. The answer would end with one
    wherever it stands, also where the grammar goes on. GBNF has no tokens here. Raises
    InvalidGrammar."""
    for found in () if is_gbnf(text) else _LARK.finditer(text):
        token = found["token"]
        name = token and next((name for name, i in ends.items() if _names(token, name, i)), None)
        if name is not None:
            raise InvalidGrammar(
                f"the grammar names {name}, which ends an answer: leave it out, an answer ends "
                "where its grammar does"
            )


def _names(token: str, name: str, end: int) -> bool:
    """Whether ``token`` of a grammar is, or may be, this one."""
    if not token.startswith("<["):
        return token == name
    said = token[2:-2]
    inside = any(first <= end <= last for first, last in _ranges(said))
    return not inside if said.startswith("^") else inside or said == "*"


def _ranges(said: str) -> Iterator[tuple[int, int]]:
    for first, last in _IDS.findall(said):
        yield int(first), int(last or first)
