"""BPE over characters, as SentencePiece's: a space is ▁, an unknown character its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import tokenizers
from msgspec.structs import replace
from tokenizers import normalizers, pre_tokenizers

from kvasir.tokenizer.byte_bpe import pairs_of
from kvasir.tokenizer.kind import Kind, bpe
from kvasir.tokenizer.merges import merges_by_score
from kvasir.tokenizer.spaces import SPACE, Spaces
from kvasir.tokenizer.vocabulary import NORMAL, USER_DEFINED, TokenList


def scored_bpe(vocabulary: TokenList, unknown: int, spaces: Spaces, field: str) -> Kind:
    """Whose merges are those of its scores: the best union first. ``unknown``: the id of what has
    no bytes either. Raises ModelError."""
    scores = vocabulary.scores
    whole = [i for i in vocabulary.ids(NORMAL, USER_DEFINED) if len(vocabulary.tokens[i]) > 1]
    whole.sort(key=lambda i: -scores[i])
    vocabulary.check_lengths(whole)
    merges = merges_by_score(vocabulary.tokens, whole)
    backend = _backend(vocabulary, merges, field, vocabulary.tokens[unknown])
    backend.normalizer = spaces.normalizer(field)
    return Kind(backend, vocabulary, "metaspace", spaces.has_prefix, adds_bos=True)


class PieceRules(msgspec.Struct, frozen=True):
    """What becomes of spaces."""

    has_prefix: bool = False
    """Each word begins with ▁, the first one, too; else it is a character like others."""
    drops_spaces: bool = False
    """Words are apart, and no token spells what is between."""
    adds_bos: bool = False


PIECE_RULES = {
    "gemma4": PieceRules(adds_bos=True),
    "granite-embed-multi-311m": PieceRules(adds_bos=True),
    "sarvam-moe": PieceRules(),
    "mmbert": PieceRules(has_prefix=True),
    "whitespace": PieceRules(drops_spaces=True),
}
"""By the values of ``tokenizer.ggml.pre`` whose tokens are characters, not bytes."""


def merged_bpe(
    vocabulary: TokenList,
    lines: Sequence[str],
    rules: PieceRules,
    field: str,
    lowercase: bool = False,
) -> Kind:
    """Whose merges stand in ``lines``, two tokens each. Raises ModelError."""
    vocabulary = _with_runs(vocabulary)
    backend = _backend(vocabulary, pairs_of(lines, field), field)
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    if rules.drops_spaces:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    elif rules.has_prefix:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "always", split=True)
    else:
        steps.append(normalizers.Replace(" ", SPACE))
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    return Kind(backend, vocabulary, "metaspace", rules.has_prefix, adds_bos=rules.adds_bos)


def _with_runs(vocabulary: TokenList) -> TokenList:
    """Runs of spaces as merges spell them: llama.cpp's converter writes user-defined ones with
    spaces, which leaves merges without their tokens."""
    known = frozenset(vocabulary.tokens)
    tokens = list(vocabulary.tokens)
    for i in vocabulary.ids(USER_DEFINED):
        run = SPACE * len(tokens[i])
        if not tokens[i].strip(" ") and run not in known:
            tokens[i] = run
    return replace(vocabulary, tokens=tuple(tokens))


def _backend(
    vocabulary: TokenList, merges: list[tuple[str, str]], field: str, unknown: str | None = None
) -> tokenizers.Tokenizer:
    model = bpe(
        field,
        vocabulary.table(),
        merges,
        byte_fallback=True,
        fuse_unk=unknown is not None,
        unk_token=unknown,
    )
    return tokenizers.Tokenizer(model)
