"""Reasoning that ends: after a number of tokens the marker that closes it is all that may follow.

``followers.py`` counts the tokens.
"""

from __future__ import annotations

import msgspec

_HEAD = '{"thinking":'
_json = msgspec.json.Encoder(order="deterministic")


class ThinkingLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Markers are parts: ids of special tokens, and text."""

    begin: tuple[int | str, ...]
    end: tuple[int | str, ...]
    close: tuple[int, ...]
    """Ids that spell the end, and what is to stand before it."""
    is_open: bool = False
    """Whether the prompt ends inside of reasoning."""
    budget: int | None = None
    """Tokens of it; None: as many as it takes."""
    closes_at: int | None = None
    """Number of outputs after which it ends, whatever it took."""


class Limited(msgspec.Struct, frozen=True, omit_defaults=True):
    """As text a constraint."""

    thinking: ThinkingLimit
    grammar: str = ""
    """Of the whole answer; empty: any."""

    def text(self) -> str:
        return _json.encode(self).decode()


def limit_in(constraint: str) -> Limited | None:
    """What ``constraint`` says of reasoning. Raises ValueError."""
    if not constraint.startswith(_HEAD):
        return None
    return msgspec.json.decode(constraint, type=Limited)


def grammar_in(constraint: str) -> str:
    """What of it is a grammar; empty: none."""
    found = limit_in(constraint)
    return constraint if found is None else found.grammar


def closed_at(constraint: str, n_outputs: int) -> str:
    """``constraint`` whose reasoning ends after ``n_outputs``; unchanged where it ends before."""
    found = limit_in(constraint)
    if found is None or found.thinking.closes_at is not None:
        return constraint
    thinking = msgspec.structs.replace(found.thinking, closes_at=n_outputs)
    return msgspec.structs.replace(found, thinking=thinking).text()
