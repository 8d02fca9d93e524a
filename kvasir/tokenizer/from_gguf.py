"""Tokenizers of GGUF metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from kvasir.core.errors import ModelError
from kvasir.formats.fields import get_bool, get_int, get_str, get_tuple
from kvasir.tokenizer.added import END_NAMES, add_listed, strip_rules
from kvasir.tokenizer.affixes import put_around
from kvasir.tokenizer.byte_bpe import byte_bpe
from kvasir.tokenizer.kind import Kind
from kvasir.tokenizer.piece_bpe import PIECE_RULES, merged_bpe, scored_bpe
from kvasir.tokenizer.pretokenize import rules_of
from kvasir.tokenizer.spaces import Spaces
from kvasir.tokenizer.tokenizer import TokenizerSpec
from kvasir.tokenizer.unigram import unigram
from kvasir.tokenizer.vocabulary import NORMAL, TokenList, distinct_tokens, finite_scores
from kvasir.tokenizer.wordpiece import word_piece

Config = Mapping[str, object]
_KEY = "tokenizer.ggml."
_TOKENS, _SCORES, _MERGES = _KEY + "tokens", _KEY + "scores", _KEY + "merges"
_CHARSMAP = _KEY + "precompiled_charsmap"


def spec_from_gguf(config: Config, n_embeddings: int | None = None) -> TokenizerSpec:
    """Build the tokenizer that GGUF metadata describes, of a model with ``n_embeddings`` ids.

    Raises ModelError naming the field.
    """
    name = get_str(config, _KEY + "model")
    if name not in _KINDS:
        raise ModelError(
            f"tokenizer.ggml.model {name!r} is not supported "
            f"(supported: {', '.join(sorted(_KINDS))}): "
            "use the model's Hugging Face folder with its tokenizer.json",
            code="unsupported_tokenizer",
        )
    kind = _KINDS[name](config, _vocabulary(config))
    tokens = kind.vocabulary.tokens
    special, plain = add_listed(kind.backend, kind.vocabulary, strip_rules(config))
    known = tokens[:n_embeddings]
    affixes = _bert_affixes if name == "bert" else _affixes
    bos_id, first, last = affixes(config, kind, len(known))
    is_bert = name == "bert" or config.get("general.architecture") == "modern-bert"
    put_around(kind.backend, first, last, n_between=1 if is_bert else 2)
    return TokenizerSpec(
        backend=kind.backend,
        style=kind.style,
        strip_space=kind.strips_space,
        added_ids=frozenset(special) | frozenset(plain),
        special_ids=frozenset(special),
        bos_id=bos_id,
        eos_ids=_end_ids(config, known, special),
        n_embeddings=n_embeddings,
    )


def _vocabulary(config: Config) -> TokenList:
    tokens = distinct_tokens(get_tuple(config, _TOKENS, str), _TOKENS)
    types = get_tuple(config, _KEY + "token_type", int) or (NORMAL,) * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        )
    return TokenList(tokens, types, (), _TOKENS)


def _byte_level(config: Config, vocabulary: TokenList) -> Kind:
    pre = get_str(config, _KEY + "pre") or "default"
    lines = get_tuple(config, _MERGES, str)
    if pre in PIECE_RULES:
        lowercase = get_bool(config, _KEY + "normalizer.lowercase", False) is True
        return merged_bpe(vocabulary, lines, PIECE_RULES[pre], _MERGES, lowercase)
    return byte_bpe(vocabulary, lines, rules_of(pre), _MERGES)


def _gemma(config: Config, vocabulary: TokenList) -> Kind:
    lines = get_tuple(config, _MERGES, str)
    return merged_bpe(vocabulary, lines, PIECE_RULES["gemma4"], _MERGES)


def _scored(config: Config, vocabulary: TokenList) -> TokenList:
    scores = get_tuple(config, _SCORES, float)
    return replace(vocabulary, scores=finite_scores(scores, len(vocabulary.tokens), _SCORES))


def _sentence_piece(config: Config, vocabulary: TokenList) -> Kind:
    spaces = Spaces(has_prefix=_has_prefix(config))
    unknown = _token_id(config, "unknown", len(vocabulary.tokens)) or 0
    return scored_bpe(_scored(config, vocabulary), unknown, spaces, _SCORES)


def _unigram(config: Config, vocabulary: TokenList) -> Kind:
    values = get_tuple(config, _CHARSMAP, int)
    if not all(-128 <= value <= 255 for value in values):
        raise ModelError(f"{_CHARSMAP} holds a number that is no byte")
    spaces = Spaces(
        charsmap=bytes(value & 0xFF for value in values),
        has_prefix=_has_prefix(config),
        is_merged=get_bool(config, _KEY + "remove_extra_whitespaces", False) is True,
    )
    unknown = _named_id(config, "unknown", len(vocabulary.tokens))
    return unigram(_scored(config, vocabulary), unknown, spaces, _CHARSMAP)


def _has_prefix(config: Config) -> bool:
    return get_bool(config, _KEY + "add_space_prefix", True) is True


def _word_piece(config: Config, vocabulary: TokenList) -> Kind:
    lowercase = get_bool(config, _KEY + "normalizer.lowercase", True) is True
    strips = get_bool(config, _KEY + "normalizer.strip_accents", lowercase) is True
    unknown = _named_id(config, "unknown", len(vocabulary.tokens))
    return word_piece(vocabulary, unknown, lowercase, strips)


_KINDS: dict[str, Callable[[Config, TokenList], Kind]] = {
    "bert": _word_piece,
    "gemma4": _gemma,
    "gpt2": _byte_level,
    "llama": _sentence_piece,
    "t5": _unigram,
    "whitespace": _byte_level,
}

Affixes = tuple[int | None, int | None, int | None]
"""The id of BOS, and those that begin and end texts."""


def _affixes(config: Config, kind: Kind, n_tokens: int) -> Affixes:
    bos_id, eos_id = (_token_id(config, word, n_tokens) for word in ("bos", "eos"))
    begins = get_bool(config, _KEY + "add_bos_token", kind.adds_bos)
    ends = get_bool(config, _KEY + "add_eos_token", kind.adds_eos)
    return bos_id, bos_id if begins else None, eos_id if ends else None


def _bert_affixes(config: Config, _: Kind, n_tokens: int) -> Affixes:
    """[CLS] and [SEP], by the names that GGUF has for them."""
    bos_id = _named_id(config, "cls" if _has_id(config, "cls") else "bos", n_tokens)
    return bos_id, bos_id, _named_id(config, "seperator", n_tokens)


def _has_id(config: Config, word: str) -> bool:
    return config.get(f"{_KEY}{word}_token_id") is not None


def _named_id(config: Config, word: str, n_tokens: int) -> int:
    token_id = _token_id(config, word, n_tokens)
    if token_id is None:
        raise ModelError(f"{_KEY}{word}_token_id is missing: convert the model again")
    return token_id


def _token_id(config: Config, word: str, n_tokens: int) -> int | None:
    key = f"{_KEY}{word}_token_id"
    token_id = get_int(config, key)
    if token_id is not None and not 0 <= token_id < n_tokens:
        raise ModelError(f"{key} is {token_id}, the model has the ids 0 to {n_tokens - 1}")
    return token_id


def _end_ids(config: Config, tokens: tuple[str, ...], special: Iterable[int]) -> tuple[int, ...]:
    named = [_token_id(config, word, len(tokens)) for word in ("eos", "eot", "eom")]
    ends = frozenset(END_NAMES)
    ids = [i for i in named if i is not None]
    ids += [i for i in special if i < len(tokens) and tokens[i] in ends]
    return tuple(dict.fromkeys(ids))
