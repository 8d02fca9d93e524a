"""WordPiece (BERT; Devlin et al. 2018): of each word the longest token that it begins with, again
and again."""

from __future__ import annotations

import tokenizers
from msgspec.structs import replace
from tokenizers import models, normalizers, pre_tokenizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.kind import Kind
from kvasir.tokenizer.spaces import SPACE
from kvasir.tokenizer.tokenizer import CONTINUES
from kvasir.tokenizer.vocabulary import CONTROL, TokenList


def word_piece(vocabulary: TokenList, unknown: int, lowercase: bool, strip_accents: bool) -> Kind:
    """``vocabulary`` as GGUF writes it: tokens that begin a word have a ▁. ``unknown``: the id of a
    word that has no tokens. Raises ModelError."""
    vocabulary = _renamed(vocabulary)
    model = models.WordPiece(
        vocab=vocabulary.table(),
        unk_token=vocabulary.tokens[unknown],
        continuing_subword_prefix=CONTINUES,
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Kind(backend, vocabulary, "word_piece", strips_space=True)


def _renamed(vocabulary: TokenList) -> TokenList:
    """As in BERT's own file, where tokens that go on with a word have ``##``."""
    control = frozenset(vocabulary.ids(CONTROL))
    tokens = tuple(
        token if i in control else _name(token) for i, token in enumerate(vocabulary.tokens)
    )
    if len(set(tokens)) < len(tokens):
        raise ModelError(f"{vocabulary.field} holds the same token twice: the file is corrupt")
    return replace(vocabulary, tokens=tokens)


def _name(token: str) -> str:
    rest = token.removeprefix(SPACE)
    return rest if rest and rest != token else CONTINUES + token
