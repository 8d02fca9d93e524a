"""What a kind of tokenizer makes of a vocabulary, before its special tokens are known."""

from __future__ import annotations

import msgspec
import tokenizers
from tokenizers import models

from kvasir.core.errors import ModelError
from kvasir.tokenizer.tokenizer import PieceStyle
from kvasir.tokenizer.vocabulary import TokenList


class Kind(msgspec.Struct, frozen=True):
    """A tokenizer without special tokens, and what it does where its file is silent."""

    backend: tokenizers.Tokenizer
    vocabulary: TokenList
    """By the names that ``backend`` has."""
    style: PieceStyle
    strips_space: bool = False
    adds_bos: bool = False
    adds_eos: bool = False


def bpe(
    field: str, vocab: dict[str, int], merges: list[tuple[str, str]], **options: object
) -> models.BPE:
    """Raises ModelError, which names ``field``, for merges that do not fit ``vocab``."""
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{field} does not fit its tokens: {error}") from None
