"""One text of words and special tokens, in which no word can be taken for a special token."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec
import tokenizers
from tokenizers import AddedToken

_NOBODYS = "\U0010fffd"
"""A character of private use, in no vocabulary."""

LONG = 4096
"""Characters of a text that takes milliseconds."""


class TextPiece(msgspec.Struct, frozen=True):
    """A part of a text that is tokenized as a whole."""

    text: str
    special: bool = True
    """Whether names of special tokens in it are these tokens; else they are words."""


def encode(
    backend: tokenizers.Tokenizer, text: str, add_special: bool = False
) -> tokenizers.Encoding:
    """The library keeps the interpreter's lock for one text, so that a long one would stop every
    thread of the process for a second, and lets it go for a list."""
    if len(text) < LONG:
        return backend.encode(text, add_special_tokens=add_special)
    return backend.encode_batch([text], add_special_tokens=add_special)[0]


def twin_of(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """One that does the same but for what is put around a text. It shares the model and with it the
    vocabulary; only added tokens may have other ids."""
    twin = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        twin.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        twin.pre_tokenizer = backend.pre_tokenizer
    twin.add_tokens([token for _, token in sorted(backend.get_added_tokens_decoder().items())])
    return twin


class Speller:
    """A twin of ``backend`` for which the names of special tokens are words.

    It knows each special token by an alias that nobody can guess. The library's own switch on
    ``backend`` would not be thread-safe. Immutable.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        added = sorted(backend.get_added_tokens_decoder().items())
        secret = secrets.token_hex(16)
        self._aliases = {i: f"\u205e{secret}{i};" for i, _ in added if i in special_ids}
        twin = twin_of(backend)
        twin.add_tokens([_alias(token, self._aliases[i]) for i, token in added if i in special_ids])
        twin.encode_special_tokens = True
        self._twin = twin
        unknown = {*twin.encode(_NOBODYS, add_special_tokens=False).ids, _unknown_of(twin)}
        self._real: dict[int | None, list[int]] = {}
        for i, token in added:
            own = twin.token_to_id(token.content)
            is_name = i in special_ids and own not in unknown
            self._real[own] = self._letters(token.content) if is_name else [i]
        self._real |= {twin.token_to_id(alias): [i] for i, alias in self._aliases.items()}

    def encode(self, parts: Sequence[str | int]) -> list[int]:
        """Ids of the text that ``parts`` make together: texts, and special tokens by their ids.

        Whatever a tokenizer does at the start of a text or beside a special token it does here.
        Raises UnicodeEncodeError or TypeError for text that is not valid Unicode.
        """
        text = "".join(part if isinstance(part, str) else self._aliases[part] for part in parts)
        ids = encode(self._twin, text).ids
        return [real for i in ids for real in self._real.get(i, (i,))]

    def _letters(self, name: str) -> list[int]:
        """Ids of its characters: a model may make a special token of them by its own merges."""
        return [letter.id for char in name for letter in self._twin.model.tokenize(char)]


def _alias(token: AddedToken, name: str) -> AddedToken:
    """It is taken wherever it stands, so it is matched before anything changes the text."""
    return AddedToken(name, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)


def _unknown_of(backend: tokenizers.Tokenizer) -> int | None:
    """The id of what the model has no token for, where it names one."""
    name = getattr(backend.model, "unk_token", None)
    return None if name is None else backend.token_to_id(name)
