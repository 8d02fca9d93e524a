"""Patterns of JSON Schema mean what ECMA 262 has them mean."""

from __future__ import annotations

import pytest

from kvasir.grammar.constraint import text_grammar
from kvasir.grammar.patterns import translated
from tests.byte_grammar import compiled, spelled, takes

CASES = {
    r"^\s$": (" \t\u00a0\u2003", "\ufeff\u0085a"),
    r"^\S$": ("aé", " \ufeff"),
    r"^[\s]$": (" \u00a0", "\u0085a"),
    r"^[^\s@]$": ("aé", " @\ufeff\u0085"),
    r"^[^\S]$": (" \u00a0", "a\ufeff"),
    r"^[\s\S]$": ("a \ufeff\u0085", ""),
    r"^[a[b]$": ("a[b", "]c"),
    r"^[+--]$": ("+,-", "."),
    r"^[--/]$": ("-./", ","),
    r"^[&&~~-]$": ("&~-", "a"),
    r"^[a^-]$": ("a^-", "b_"),
    r"^[\w-]$": ("a_-", "é"),
    r"^[\d]$": ("1", "\u0661"),
    r"^[^]$": ("a ", ""),
    r"^[\]a]$": ("]a", "\\"),
    r"^\[$": ("[", "a"),
    r"^[\b]$": ("\b", "b"),
    r"^\cA$": ("\x01", "A"),
    r"^[\u00e0-\u00ff]$": ("é", "e"),
}


@pytest.mark.parametrize("pattern", CASES)
def test_characters(pattern: str) -> None:
    taken, refused = CASES[pattern]
    matcher = compiled({"type": "string", "pattern": pattern})
    assert matcher is not None, translated(pattern)
    assert [char for char in taken if not takes(matcher, spelled(char))] == []
    assert [char for char in refused if takes(matcher, spelled(char))] == []


def test_nothing_is_in_an_empty_class() -> None:
    assert compiled({"type": "string", "pattern": "^[]$"}) is None


def test_what_is_no_pattern_stays_none() -> None:
    assert compiled({"type": "string", "pattern": "[abc"}) is None


def test_names_of_properties() -> None:
    matcher = compiled(
        {"type": "object", "patternProperties": {r"^[a[]$": {}}, "additionalProperties": False}
    )
    assert matcher is not None
    assert takes(matcher, '{"[": 1}')
    assert not takes(matcher, '{"b": 1}')


@pytest.mark.parametrize(
    ("text", "taken", "refused"),
    [
        (r'root ::= "\x41" [\u00e9]', "Aé", "Ae"),
        (r'root ::= "\u00e9" [\U0001F600-\U0001F64F]', "é😀", "éx"),
        (r'root ::= [^"\\\x7F\x00-\x1F]', "a", "\n"),
        (r'root ::= "\\u0041"', r"\u0041", "A"),
    ],
)
def test_escapes_of_gbnf(text: str, taken: str, refused: str) -> None:
    grammar = text_grammar(text)
    assert takes(grammar, taken)
    assert not takes(grammar, refused)
