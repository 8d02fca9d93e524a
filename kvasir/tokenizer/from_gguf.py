"""Tokenizers of GGUF metadata: byte-level BPE ("gpt2") and SentencePiece BPE ("llama")."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from tokenizers import AddedToken, models, normalizers, processors

from kvasir.core.errors import ModelError
from kvasir.formats.fields import get_bool, get_int, get_str, get_tuple
from kvasir.tokenizer.merges import ID_BITS, merges_by_score
from kvasir.tokenizer.pretokenize import split_of
from kvasir.tokenizer.tokenizer import TokenizerSpec

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_MAX_TOKENS = 1 << ID_BITS
_MAX_PIECE = 256
"""Characters of a SentencePiece token: deriving its merges takes their square."""

END_NAMES = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<turn|>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]",
    "<｜end▁of▁sentence｜>", "<end_of_utterance>",
)  # fmt: skip
"""Tokens that end a turn by convention; files often name only one of theirs in the metadata."""


def spec_from_gguf(config: Mapping[str, object], n_embeddings: int | None = None) -> TokenizerSpec:
    """Build the tokenizer that GGUF metadata describes, of a model with ``n_embeddings`` ids.

    Raises ModelError naming the field.
    """
    model = get_str(config, "tokenizer.ggml.model")
    tokens = _tokens(config)
    types = _types(config, tokens)
    if model == "gpt2":
        backend, strip_space, default_bos = _byte_level(config, tokens)
    elif model == "llama":
        backend, strip_space, default_bos = _sentence_piece(config, tokens, types)
    else:
        raise ModelError(
            f"tokenizer.ggml.model {model!r} is not supported (supported: gpt2, llama): "
            "use the model's Hugging Face folder with its tokenizer.json",
            code="unsupported_tokenizer",
        )
    special, plain = _added(tokens, types)
    backend.add_special_tokens(
        [AddedToken(tokens[i], normalized=False, special=True) for i in special]
    )
    backend.add_tokens([AddedToken(tokens[i], normalized=False) for i in plain])
    known = tokens[:n_embeddings]
    bos_id = _token_id(config, "bos", len(known))
    _add_affixes(config, backend, known, bos_id, default_bos)
    return TokenizerSpec(
        backend=backend,
        style="byte_level" if model == "gpt2" else "metaspace",
        strip_space=strip_space,
        added_ids=frozenset(special) | frozenset(plain),
        special_ids=frozenset(special),
        bos_id=bos_id,
        eos_ids=_end_ids(config, known, special),
        n_embeddings=n_embeddings,
    )


def _tokens(config: Mapping[str, object]) -> tuple[str, ...]:
    tokens = get_tuple(config, "tokenizer.ggml.tokens", str)
    if not 0 < len(tokens) <= _MAX_TOKENS:
        raise ModelError(
            f"tokenizer.ggml.tokens has {len(tokens)} entries, expected 1 to {_MAX_TOKENS}"
        )
    tokens = tuple(token or f"[EMPTY_{i}]" for i, token in enumerate(tokens))
    if len(set(tokens)) < len(tokens):
        raise ModelError("tokenizer.ggml.tokens holds the same token twice: the file is corrupt")
    return tokens


def _types(config: Mapping[str, object], tokens: tuple[str, ...]) -> tuple[int, ...]:
    types = get_tuple(config, "tokenizer.ggml.token_type", int) or (_NORMAL,) * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        )
    return types


def _token_id(config: Mapping[str, object], word: str, n_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{word}_token_id"
    token_id = get_int(config, key)
    if token_id is not None and not 0 <= token_id < n_tokens:
        raise ModelError(f"{key} is {token_id}, the model has the ids 0 to {n_tokens - 1}")
    return token_id


def _byte_level(
    config: Mapping[str, object], tokens: tuple[str, ...]
) -> tuple[tokenizers.Tokenizer, bool, bool]:
    split = split_of(get_str(config, "tokenizer.ggml.pre") or "default")
    lines = get_tuple(config, "tokenizer.ggml.merges", str)
    if len(lines) > _MAX_TOKENS:
        raise ModelError(
            f"tokenizer.ggml.merges has {len(lines)} entries, at most {_MAX_TOKENS} are allowed"
        )
    merges = _pairs(lines)
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    backend = tokenizers.Tokenizer(
        _bpe("tokenizer.ggml.merges", vocab, merges, ignore_merges=split.ignore_merges)
    )
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split.build()
    return backend, False, split.add_bos


def _pairs(lines: Sequence[str]) -> list[tuple[str, str]]:
    try:
        return [(left, right) for left, right in (line.split(" ") for line in lines)]
    except ValueError:  # a line is wrong, or holds a space in a token
        return [_pair(line) for line in lines]


def _pair(line: str) -> tuple[str, str]:
    left, separator, right = line[1:].partition(" ")
    if not separator or not right:
        raise ModelError(
            f"tokenizer.ggml.merges holds {line!r}, expected two tokens and a space between"
        )
    return line[0] + left, right


def _sentence_piece(
    config: Mapping[str, object], tokens: tuple[str, ...], types: tuple[int, ...]
) -> tuple[tokenizers.Tokenizer, bool, bool]:
    scores = get_tuple(config, "tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise ModelError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens"
        )
    if not all(map(math.isfinite, scores)):
        raise ModelError("tokenizer.ggml.scores holds a score that is not finite")
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    unknown = _token_id(config, "unknown", len(tokens))
    backend = tokenizers.Tokenizer(
        _bpe(
            "tokenizer.ggml.scores",
            vocab,
            _merges_by_score(vocab, scores, types),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=tokens[0 if unknown is None else unknown],
        )
    )
    prefix = get_bool(config, "tokenizer.ggml.add_space_prefix", True) is True
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    return backend, prefix, True


def _merges_by_score(
    vocab: dict[str, int], scores: tuple[float, ...], types: tuple[int, ...]
) -> list[tuple[str, str]]:
    """All ways to split a token, best token first: SentencePiece makes the best union first."""
    tokens, kinds = list(vocab), (_NORMAL, _USER_DEFINED)
    whole = [i for i, piece in enumerate(tokens) if len(piece) > 1 and types[i] in kinds]
    whole.sort(key=lambda i: -scores[i])
    _check_lengths(tokens, whole)
    return merges_by_score(tokens, whole)


def _check_lengths(tokens: Sequence[str], whole: Iterable[int]) -> None:
    """Raises ModelError for a token that is too long to derive merges from."""
    for i in whole:
        if len(tokens[i]) > _MAX_PIECE:
            raise ModelError(
                f"tokenizer.ggml.tokens[{i}] has {len(tokens[i])} characters, "
                f"at most {_MAX_PIECE} can be merged"
            )


def _bpe(
    field: str, vocab: dict[str, int], merges: list[tuple[str, str]], **options: object
) -> models.BPE:
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{field} does not fit tokenizer.ggml.tokens: {error}") from None


def _added(tokens: tuple[str, ...], types: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Ids of special tokens, and of tokens that are only never split."""
    ends = frozenset(END_NAMES)
    special = [
        i for i, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL) or tokens[i] in ends
    ]
    taken = frozenset(special)
    return special, [i for i, kind in enumerate(types) if kind == _USER_DEFINED and i not in taken]


def _add_affixes(
    config: Mapping[str, object],
    backend: tokenizers.Tokenizer,
    tokens: tuple[str, ...],
    bos_id: int | None,
    default_bos: bool,
) -> None:
    """What ``add_special`` puts before and after a text."""
    eos_id = _token_id(config, "eos", len(tokens))
    before = bos_id if get_bool(config, "tokenizer.ggml.add_bos_token", default_bos) else None
    after = eos_id if get_bool(config, "tokenizer.ggml.add_eos_token", False) else None
    if before is None and after is None:
        return
    template = (
        [tokens[i] for i in (before,) if i is not None]
        + ["$A"]
        + [tokens[i] for i in (after,) if i is not None]
    )
    names = [(tokens[i], i) for i in (before, after) if i is not None]
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=list(dict.fromkeys(names))
    )


def _end_ids(
    config: Mapping[str, object], tokens: tuple[str, ...], special: Iterable[int]
) -> tuple[int, ...]:
    named = [_token_id(config, word, len(tokens)) for word in ("eos", "eot", "eom")]
    ends = frozenset(END_NAMES)
    ids = [i for i in named if i is not None]
    ids += [i for i in special if i < len(tokens) and tokens[i] in ends]
    return tuple(dict.fromkeys(ids))
