"""What may not be drawn: ``allowed_token_ids`` as a mask, ``bad_words`` as tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from kvasir.core.errors import RequestError
from kvasir.core.params import SAMPLERS, mask_words
from kvasir.validation.checks import check_ids, check_list, check_text
from kvasir.validation.sampling import SamplingParams

MAX_BAD_WORDS = 128
MAX_BAD_WORD_BYTES = 256
"""UTF-8 bytes of one."""
_ONE = ord("1")

Encode = Callable[[str], Sequence[int]]
"""Ids of a text, without special tokens around it."""


def cannot_spell(text: str) -> Sequence[int]:
    """The ``Encode`` of who has no tokenizer."""
    raise RequestError("bad_words need the model's tokenizer: leave them out", param="bad_words")


def check_allowed(params: SamplingParams, vocab_size: int) -> None:
    """An empty list would allow nothing."""
    if params.allowed_token_ids is None:
        return
    name = "allowed_token_ids"
    ids = check_list(name, params.allowed_token_ids, "token ids", vocab_size)
    if not ids:
        raise RequestError(f"{name} is empty: nothing could be drawn", param=name)
    check_ids(name, ids, vocab_size)


def allowed_mask(ids: Sequence[int] | None, vocab_size: int) -> bytes:
    """``TokenParams.allowed`` of checked ``ids``."""
    if ids is None:
        return b""
    n_bytes = 4 * mask_words(vocab_size)
    digits = bytearray(b"0") * (8 * n_bytes)  # of a number in base 2, the last one first
    for token in ids:
        digits[token] = _ONE
    return int(digits[::-1], 2).to_bytes(n_bytes, "little")


def check_words(params: SamplingParams) -> None:
    if params.bad_words is not None:
        for word in check_list("bad_words", params.bad_words, "strings", MAX_BAD_WORDS):
            check_text("bad_words", word, MAX_BAD_WORD_BYTES)


def both_ways(word: str) -> tuple[str, str]:
    """``word`` at the beginning of a text, and after a space."""
    bare = word.lstrip()
    return bare, " " + bare


def spelling(
    words: Sequence[str], encode: Encode
) -> Generator[None, None, dict[str, Sequence[int]]]:
    """Ids of every text that ``spell_words`` asks for, one between two yields: 0.04 ms for the
    longest, and 256 of them may be asked for."""
    found: dict[str, Sequence[int]] = {}
    for word in dict.fromkeys(words):
        for text in both_ways(word):
            found[text] = encode(text)
            yield
    return found


def spell_words(
    words: Sequence[str], encode: Encode, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Tokens of each word at the beginning of a text, and of the same after a space where these are
    as many and others, as vLLM has it. Raises RequestError for a word without tokens."""
    found: list[tuple[int, ...]] = []
    for word in words:
        bare, spaced = (tuple(encode(text)) for text in both_ways(word))
        if not bare:
            raise RequestError(
                f"bad_words has {word[:32]!r}, which has no tokens", param="bad_words"
            )
        found.append(bare)
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            found.append(spaced)
    check_ids("bad_words", [token for word in found for token in word], vocab_size)
    return tuple(dict.fromkeys(found))


def check_samplers(params: SamplingParams) -> None:
    if params.samplers is None:
        return
    names = check_list("samplers", params.samplers, "names", len(SAMPLERS))
    if not names:
        raise RequestError("samplers is empty: name one, or leave it out", param="samplers")
    for name in names:
        if name not in SAMPLERS:
            raise RequestError(
                f"samplers has {str(name)[:32]!r}: use {', '.join(SAMPLERS)}", param="samplers"
            )
    if len(set(names)) != len(names):
        raise RequestError("samplers names one twice", param="samplers")
