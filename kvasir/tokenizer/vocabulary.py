"""A vocabulary that a file lists by id: GGUF metadata, or a SentencePiece model."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from kvasir.core.errors import ModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens, by SentencePiece's numbers."""
ID_BITS = 21
MAX_TOKENS = 1 << ID_BITS
_MAX_PIECE = 256
"""Characters of a token that is merged: deriving its merges takes their square."""


class TokenList(msgspec.Struct, frozen=True):
    tokens: tuple[str, ...]
    """Distinct."""
    types: tuple[int, ...]
    scores: tuple[float, ...]
    """Finite; none where the kind needs none."""
    field: str
    """What errors begin with: ``tokenizer.ggml.tokens``."""

    def ids(self, *kinds: int) -> list[int]:
        """Of the tokens of ``kinds``."""
        return [i for i, kind in enumerate(self.types) if kind in kinds]

    def table(self) -> dict[str, int]:
        """Ids by token."""
        return dict(zip(self.tokens, range(len(self.tokens)), strict=True))

    def check_lengths(self, ids: Iterable[int]) -> None:
        """Raises ModelError for a token of ``ids`` that is too long to derive merges from."""
        for i in ids:
            if len(self.tokens[i]) > _MAX_PIECE:
                raise ModelError(
                    f"{self.field}[{i}] has {len(self.tokens[i])} characters, "
                    f"at most {_MAX_PIECE} can be merged"
                )


def distinct_tokens(tokens: tuple[str, ...], field: str) -> tuple[str, ...]:
    """``tokens``, the empty ones with a name. Raises ModelError for none, too many, or doubles."""
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise ModelError(f"{field} has {len(tokens)} entries, expected 1 to {MAX_TOKENS}")
    tokens = tuple(token or f"[EMPTY_{i}]" for i, token in enumerate(tokens))
    if len(set(tokens)) < len(tokens):
        raise ModelError(f"{field} holds the same token twice: the file is corrupt")
    return tokens


def finite_scores(scores: tuple[float, ...], n_tokens: int, field: str) -> tuple[float, ...]:
    """``scores``. Raises ModelError where they are not one for each token, and finite."""
    if len(scores) != n_tokens:
        raise ModelError(f"{field} has {len(scores)} entries for {n_tokens} tokens")
    if not all(map(math.isfinite, scores)):
        raise ModelError(f"{field} holds a score that is not finite")
    return scores
