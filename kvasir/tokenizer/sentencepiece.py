"""SentencePiece's own files, ``tokenizer.model``: pieces with scores and kinds, and how text is
brought to them (sentencepiece_model.proto)."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from kvasir.core.errors import ModelError
from kvasir.tokenizer.protobuf import Value, read_fields
from kvasir.tokenizer.spaces import Spaces
from kvasir.tokenizer.vocabulary import NORMAL, TokenList, distinct_tokens, finite_scores

UNIGRAM, BPE = 1, 2
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _TYPE = 1, 2, 3
_ALGORITHM, _SUFFIX, _UNK, _BOS, _EOS = 3, 24, 40, 41, 42
_CHARSMAP, _PREFIX, _MERGED, _ESCAPED = 2, 3, 4, 5


class SentencePieces(msgspec.Struct, frozen=True):
    """One file."""

    vocabulary: TokenList
    algorithm: int
    """``UNIGRAM`` or ``BPE``."""
    spaces: Spaces
    unk_id: int
    bos_id: int | None
    eos_id: int | None


def read_sentence_pieces(data: bytes, field: str) -> SentencePieces:
    """Raises ModelError for a file that is corrupt, or of an algorithm that no model here has."""
    pieces: list[tuple[str, float, int]] = []
    parts: dict[int, bytes] = {}
    for number, value in read_fields(data):
        if number == _PIECES:
            pieces.append(_piece(_bytes(value)))
        elif number in (_TRAINER, _NORMALIZER):
            parts[number] = parts.get(number, b"") + _bytes(value)
    tokens = distinct_tokens(tuple(text for text, _, _ in pieces), field)
    scores = finite_scores(tuple(score for _, score, _ in pieces), len(tokens), field)
    types = tuple(kind for _, _, kind in pieces)
    trainer = dict(read_fields(parts.get(_TRAINER, b"")))
    algorithm = _number(trainer, _ALGORITHM, UNIGRAM)
    if algorithm not in (UNIGRAM, BPE):
        raise ModelError(
            f"{field}: SentencePiece's algorithm {algorithm} is not supported "
            f"(supported: unigram, {UNIGRAM}, and BPE, {BPE})",
            code="unsupported_tokenizer",
        )
    if _number(trainer, _SUFFIX, 0):
        raise ModelError(
            f"{field}: treat_whitespace_as_suffix is not supported", code="unsupported_tokenizer"
        )
    unk_id = _id(trainer, _UNK, 0, len(tokens))
    if unk_id is None:
        raise ModelError(f"{field}: unk_id is {_number(trainer, _UNK, 0)}, which has no piece")
    return SentencePieces(
        vocabulary=TokenList(tokens, types, scores, field),
        algorithm=algorithm,
        spaces=_spaces(dict(read_fields(parts.get(_NORMALIZER, b""))), field),
        unk_id=unk_id,
        bos_id=_id(trainer, _BOS, 1, len(tokens)),
        eos_id=_id(trainer, _EOS, 2, len(tokens)),
    )


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for number, value in read_fields(data):
        if number == _PIECE:
            text = _text(_bytes(value))
        elif number == _SCORE:
            score = _float(_bytes(value))
        elif number == _TYPE and isinstance(value, int):
            kind = value
    return text, score, kind


def _spaces(normalizer: Mapping[int, Value], field: str) -> Spaces:
    if not _number(normalizer, _ESCAPED, 1):
        raise ModelError(
            f"{field}: escape_whitespaces is false, which is not supported",
            code="unsupported_tokenizer",
        )
    return Spaces(
        charsmap=_bytes(normalizer.get(_CHARSMAP, b"")),
        has_prefix=bool(_number(normalizer, _PREFIX, 1)),
        is_merged=bool(_number(normalizer, _MERGED, 1)),
    )


def _id(fields: Mapping[int, Value], number: int, default: int, n_tokens: int) -> int | None:
    """None for one that is switched off: -1, as 64 bits."""
    found = _number(fields, number, default)
    return found if found < n_tokens else None


def _number(fields: Mapping[int, Value], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ModelError(f"field {number} holds bytes, expected a number")
    return value


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ModelError("a field holds a number, expected bytes")
    return value


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"the piece {data[:40]!r} is not valid UTF-8") from None


def _float(data: bytes) -> float:
    if len(data) != 4:
        raise ModelError(f"a score has {len(data)} bytes, expected 4")
    found: float = struct.unpack("<f", data)[0]
    return found
