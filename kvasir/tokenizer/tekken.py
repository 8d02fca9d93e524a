"""Mistral's tekken.json: ranked bytes, behind a fixed number of special tokens."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import ModelError
from kvasir.tokenizer.affixes import put_around
from kvasir.tokenizer.ranks import ranked_bpe, ranked_vocabulary
from kvasir.tokenizer.settings import FolderSettings
from kvasir.tokenizer.tokenizer import TokenizerSpec
from kvasir.tokenizer.vocabulary import MAX_TOKENS
from kvasir.weights.source import ModelSource

_BOS, _EOS = "<s>", "</s>"
_UNLISTED = (
    "<unk>", _BOS, _EOS, "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
"""Special tokens of the format's versions up to 7, whose files do not list them."""


class _Token(msgspec.Struct):
    rank: int
    token_bytes: bytes
    """In base64."""


class _Special(msgspec.Struct):
    rank: int
    token_str: str
    is_control: bool = True


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Tekken(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


def spec_from_tekken(source: ModelSource, name: str, data: bytes) -> TokenizerSpec:
    """Build the tokenizer that ``data`` describes, the file ``name`` of a folder.

    A text begins with ``<s>`` unless tokenizer_config.json says otherwise. Raises ModelError naming
    the file.
    """
    path = source.path / name
    try:
        file = msgspec.json.decode(data, type=_Tekken)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is no tekken.json: {error}") from None
    special = _special_names(file, str(path))
    ranked = _ranked(file, str(path))
    vocabulary = ranked_vocabulary(ranked, special, f"{path}: vocab")
    backend = ranked_bpe(vocabulary, (file.config.pattern,))
    backend.add_special_tokens(list(special))
    settings = FolderSettings(source, backend.token_to_id, name)
    bos_id, eos_id = special.index(_BOS), special.index(_EOS)
    put_around(
        backend,
        bos_id if settings.adds("bos", True) else None,
        eos_id if settings.adds("eos", False) else None,
    )
    return TokenizerSpec(
        backend=backend,
        style="byte_level",
        strip_space=False,
        added_ids=frozenset(range(len(special))),
        special_ids=frozenset(range(len(special))),
        bos_id=bos_id,
        eos_ids=settings.end_ids(eos_id),
        n_embeddings=source.n_embeddings,
    )


def _special_names(file: _Tekken, path: str) -> tuple[str, ...]:
    """By id; those that are not listed have a number as their name."""
    n_special = file.config.default_num_special_tokens
    listed = file.special_tokens
    if listed is not None and [token.rank for token in listed] != list(range(len(listed))):
        raise ModelError(f"{path}: the ranks of special_tokens are not 0 to {len(listed) - 1}")
    names = _UNLISTED if listed is None else tuple(token.token_str for token in listed)
    if not len(names) <= n_special <= file.config.default_vocab_size <= MAX_TOKENS:
        raise ModelError(
            f"{path}: default_num_special_tokens is {n_special}, with {len(names)} special tokens "
            f"and {file.config.default_vocab_size} tokens in all"
        )
    missing = [token for token in (_BOS, _EOS) if token not in names]
    if missing:
        raise ModelError(f"{path}: special_tokens lacks {missing[0]}")
    return (*names, *(f"<SPECIAL_{i}>" for i in range(len(names), n_special)))


def _ranked(file: _Tekken, path: str) -> list[bytes]:
    """As many of the file's tokens as the model has."""
    n = file.config.default_vocab_size - file.config.default_num_special_tokens
    if n > len(file.vocab):
        raise ModelError(f"{path}: vocab has {len(file.vocab)} entries, {n} are in use")
    if any(token.rank != i for i, token in enumerate(file.vocab[:n])):
        raise ModelError(f"{path}: the ranks of vocab are not 0 to {n - 1}")
    return [token.token_bytes for token in file.vocab[:n]]
