"""Byte-level BPE: merges in their order, over GPT-2's character for each byte."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import normalizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.kind import Kind, bpe
from kvasir.tokenizer.pretokenize import byte_splitter
from kvasir.tokenizer.splits import Rules
from kvasir.tokenizer.vocabulary import MAX_TOKENS, TokenList


def byte_bpe(vocabulary: TokenList, lines: Sequence[str], rules: Rules, field: str) -> Kind:
    """``lines``: two tokens each, the first of them merged first, of the metadata's ``field``.
    Raises ModelError."""
    merges = pairs_of(lines, field)
    model = bpe(field, vocabulary.table(), merges, ignore_merges=rules.ignore_merges)
    backend = tokenizers.Tokenizer(model)
    if rules.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = byte_splitter(rules.patterns)
    return Kind(backend, vocabulary, "byte_level", adds_bos=rules.add_bos)


def pairs_of(lines: Sequence[str], field: str) -> list[tuple[str, str]]:
    """The merges in ``lines``. Raises ModelError."""
    if len(lines) > MAX_TOKENS:
        raise ModelError(f"{field} has {len(lines)} entries, at most {MAX_TOKENS} are allowed")
    try:
        return [(left, right) for left, right in (line.split(" ") for line in lines)]
    except ValueError:  # a line is wrong, or holds a space in a token
        return [_pair(line, field) for line in lines]


def _pair(line: str, field: str) -> tuple[str, str]:
    left, separator, right = line[1:].partition(" ")
    if not separator or not right:
        raise ModelError(f"{field} holds {line!r}, expected two tokens and a space between")
    return line[0] + left, right
