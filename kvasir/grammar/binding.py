"""What grammars ask of the llguidance library, whichever of its interfaces they go through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from kvasir.sampling.masks import Bits, NativeFill

MAX_LEXER_STATES = 50_000
"""Of 1 to 2 kB each; the library's own limit is 250,000."""


class TokenSpellings(msgspec.Struct, frozen=True):
    """The tokens of a model, each of which has a bit in its masks."""

    tokens: Sequence[bytes]
    """By id; empty where an id stands for nothing."""
    special_ids: Sequence[int]
    ends: Sequence[int]
    """Ids that end an answer where it may end; at least one."""
    encode: Callable[[str], list[int]]
    """Ids of a text without special tokens. Any thread."""


class Stand(Protocol):
    """Where one answer stands in a grammar. One thread at a time. After an error it is worth
    nothing."""

    def copy(self) -> Stand: ...

    def consume(self, tokens: Sequence[int]) -> None:
        """No end among ``tokens``. Raises ValueError for what is forbidden."""

    def fill(self, bits: Bits) -> None:
        """Set in ``bits`` what may follow. Raises ValueError where the library gives up."""

    def native(self, tokens: Sequence[int]) -> NativeFill | None:
        """What consumes ``tokens`` and fills a mask without the interpreter, if anything does."""

    def rollback(self, n_tokens: int) -> None: ...

    def is_accepting(self) -> bool:
        """Whether the answer may end here."""


class Library(Protocol):
    """Over one vocabulary."""

    def compile(self, text: str) -> Stand:
        """Gives the GIL back meanwhile. Raises ValueError."""


def reason(text: str) -> str:
    """An error of the library without the grammar that it repeats."""
    lines = text.strip().split("\n")
    said = next((line for line in lines if line.startswith("error: ")), "")
    return f"{lines[0][:200]} {said[:200]}".strip()
