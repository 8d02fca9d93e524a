"""SentencePiece's unigram model (Kudo 2018): of all ways to cut a text, the most likely one."""

from __future__ import annotations

import tokenizers
from msgspec.structs import replace
from tokenizers import Regex, models, pre_tokenizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.kind import Kind
from kvasir.tokenizer.spaces import Spaces
from kvasir.tokenizer.vocabulary import BYTE, NORMAL, UNUSED, TokenList

_HIDDEN = "\uffff"
"""A noncharacter, before the names of tokens that no text may become."""
_BYTE_NAME = Regex("<0(?=x[0-9A-F]{2}>)")


def unigram(vocabulary: TokenList, unknown: int, spaces: Spaces, field: str) -> Kind:
    """``unknown``: the id of what has no token; ``field``: where the map of characters stands.
    Raises ModelError."""
    vocabulary = _hidden(vocabulary)
    has_bytes = bool(vocabulary.ids(BYTE))
    try:
        model = models.Unigram(
            vocab=list(zip(vocabulary.tokens, _scores(vocabulary), strict=True)),
            unk_id=unknown,
            byte_fallback=has_bytes,
        )
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{vocabulary.field} is no unigram model: {error}") from None
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = spaces.normalizer(field)
    if has_bytes:  # a text that writes the name of one is no byte
        backend.pre_tokenizer = pre_tokenizers.Split(_BYTE_NAME, "isolated")
    return Kind(backend, vocabulary, "metaspace", spaces.has_prefix, adds_eos=True)


def _hidden(vocabulary: TokenList) -> TokenList:
    unused = frozenset(vocabulary.ids(UNUSED))
    tokens = (_HIDDEN + x if i in unused else x for i, x in enumerate(vocabulary.tokens))
    return replace(vocabulary, tokens=tuple(tokens))


def _scores(vocabulary: TokenList) -> list[float]:
    """What is unknown costs 10 more than the worst of all tokens, of which only those count that
    were trained."""
    scores = vocabulary.scores
    worst = min((scores[i] for i in vocabulary.ids(NORMAL)), default=0.0)
    return [max(score, worst) for score in scores]
