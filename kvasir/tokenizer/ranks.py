"""Byte-level BPE whose tokens are ranked: of all neighbours those are merged whose union has the
lowest rank, as tiktoken does."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.alphabet import CHARACTERS, spelled_bytes
from kvasir.tokenizer.kind import bpe
from kvasir.tokenizer.merges import merges_by_score
from kvasir.tokenizer.pretokenize import byte_splitter
from kvasir.tokenizer.vocabulary import CONTROL, NORMAL, TokenList, distinct_tokens


def ranked_vocabulary(ranked: Sequence[bytes], special: Sequence[str], field: str) -> TokenList:
    """Names of special tokens, by id, and behind them those of tokens, by rank. Raises ModelError
    where one is there twice, or a byte has no token."""
    spelled = tuple(map(spelled_bytes, ranked))
    missing = sorted(set(CHARACTERS).difference(spelled))
    if missing:
        raise ModelError(f"{field} lacks tokens for {len(missing)} of 256 bytes: it is incomplete")
    tokens = distinct_tokens((*special, *spelled), field)
    types = (CONTROL,) * len(special) + (NORMAL,) * len(spelled)
    return TokenList(tokens, types, (), field)


def ranked_bpe(vocabulary: TokenList, patterns: tuple[str, ...]) -> tokenizers.Tokenizer:
    """A text is cut by ``patterns``, the pieces that are tokens taken whole. Raises ModelError."""
    tokens = vocabulary.tokens
    whole = [i for i in vocabulary.ids(NORMAL) if len(tokens[i]) > 1]
    vocabulary.check_lengths(whole)
    first = len(vocabulary.ids(CONTROL))
    halves = tokens[first:]
    merges = merges_by_score(halves, [i - first for i in whole])
    backend = tokenizers.Tokenizer(
        bpe(vocabulary.field, vocabulary.table(), merges, ignore_merges=True)
    )
    try:
        backend.pre_tokenizer = byte_splitter(patterns)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{vocabulary.field}: the pattern is not valid: {error}") from None
    return backend
