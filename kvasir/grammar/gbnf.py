"""GBNF (llama.cpp's grammars) as Lark, by the grammar library's converter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|.)", re.DOTALL)


def is_gbnf(text: str) -> bool:
    """Whether it has a rule of GBNF; Lark writes them otherwise."""
    return _RULE.search(text) is not None


def lark_of(text: str) -> str:
    """Raises Exception, as the converter does, and RecursionError."""
    from llguidance import gbnf_to_lark  # a library of megabytes: where needed

    rules = _leaves_first(gbnf_to_lark.GrammarParser().parse(plain_escapes(text)))
    gbnf_to_lark.resolve(rules)
    return "\n".join(("%llguidance {}", *map(str, rules.values())))


def plain_escapes(text: str) -> str:
    r"""``text`` with characters themselves for \u, \U and \x, which the converter misreads; ASCII
    stays \x."""
    return _ESCAPE.sub(_plain, text)


def _plain(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    if digits is None:
        return found[0]
    code = int(digits, 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    return found[0] if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)


def _leaves_first(rules: dict[str, Any]) -> dict[str, Any]:
    """Each behind those that it names: the converter looks through all rules again for each that it
    meets before what that is made of."""
    found: dict[str, Any] = {}
    begun: set[str] = set()
    for root in rules:
        stack = [(root, iter((root,)))]
        while stack:
            name, names = stack[-1]
            following = next((x for x in names if x in rules and x not in begun), None)
            if following is None:
                stack.pop()
                found.setdefault(name, rules[name])
            else:
                begun.add(following)
                stack.append((following, _named(rules[following])))
    return found


def _named(rule: Any) -> Iterator[str]:
    """The rules that ``rule`` names."""
    nodes = [rule]
    while nodes:
        node = nodes.pop()
        nodes += node.children()
        if hasattr(node, "target"):
            yield node.name
