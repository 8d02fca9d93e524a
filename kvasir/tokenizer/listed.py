"""Added tokens that tokenizer_config.json lists, for a tokenizer that is no tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

import msgspec
import tokenizers
from tokenizers import AddedToken

from kvasir.core.errors import ModelError
from kvasir.formats.fields import get_bool
from kvasir.tokenizer.vocabulary import MAX_TOKENS
from kvasir.weights.source import ModelSource

_SETTINGS = "tokenizer_config.json"
_NAMES = "added_tokens.json"
_MAX_BETWEEN = 1 << 12


class ListedTokens(msgspec.Struct, frozen=True):
    """By id, behind the ids of the vocabulary or among them."""

    tokens: Mapping[int, AddedToken]

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(i for i, token in self.tokens.items() if token.special)

    def add_to(self, backend: tokenizers.Tokenizer, n_tokens: int) -> ListedTokens:
        """Adds them to a vocabulary of ``n_tokens``, with names for ids between that no file names;
        all of them. Raises ModelError for one that has another id here than it is listed with."""
        between = range(n_tokens, max(self.tokens, default=-1))
        if len(between) > _MAX_BETWEEN:
            raise ModelError(
                f"{_SETTINGS}: the added token {between.stop} is {len(between)} ids behind the "
                f"tokenizer's {n_tokens}, at most {_MAX_BETWEEN} are allowed"
            )
        filled = {i: AddedToken(f"[UNUSED_{i}]", normalized=False, special=True) for i in between}
        tokens = dict(sorted((filled | dict(self.tokens)).items()))
        for is_special, run in groupby(tokens.values(), lambda token: token.special):
            (backend.add_special_tokens if is_special else backend.add_tokens)(list(run))
        for i, token in tokens.items():
            if backend.token_to_id(token.content) != i:
                raise ModelError(
                    f"{_SETTINGS}: the added token {i} is {token.content[:80]!r}, which the "
                    f"tokenizer has as {backend.token_to_id(token.content)}"
                )
        return ListedTokens(tokens)


def listed_tokens(source: ModelSource) -> ListedTokens:
    """Of ``added_tokens_decoder``, and of added_tokens.json. Raises ModelError."""
    path = source.path / _SETTINGS
    found: dict[int, AddedToken] = {}
    for name, token_id in source.read_json(_NAMES).items():
        i = _id(token_id, source.path / _NAMES)
        found[i] = AddedToken(name, normalized=False, special=True)
    listed = source.read_json(_SETTINGS).get("added_tokens_decoder", {})
    if not isinstance(listed, Mapping):
        raise ModelError(f"{path}: added_tokens_decoder is no object")
    for key, item in listed.items():
        found[_id(int(key) if key.isdecimal() and len(key) < 10 else key, path)] = _token(
            item, path
        )
    return ListedTokens(found)


def _token(item: object, path: object) -> AddedToken:
    if not isinstance(item, Mapping) or not isinstance(item.get("content"), str):
        raise ModelError(f"{path}: added_tokens_decoder holds {str(item)[:80]}, expected a token")
    flags = {
        name: get_bool(item, name, False) is True
        for name in ("lstrip", "rstrip", "single_word", "normalized", "special")
    }
    return AddedToken(item["content"], **flags)


def _id(value: object, path: object) -> int:
    if type(value) is not int or not 0 <= value < MAX_TOKENS:
        raise ModelError(f"{path}: an added token has the id {str(value)[:80]}")
    return value
