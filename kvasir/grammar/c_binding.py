"""The library by its C interface, which its wheel exports (llguidance.h of llguidance 1.8 to 1.9).

Every call gives the GIL back, and a copy shares nothing with what it was copied from: neither the
time nor the memory that an answer's masks take depends on the answers beside it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char_p,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache, lru_cache
from typing import Any

import numpy as np

from kvasir.grammar.binding import MAX_LEXER_STATES, TokenSpellings, reason
from kvasir.sampling.masks import Bits, NativeFill

KNOWN = re.compile(r"llguidance@1\.[89]\.\d+\b")
"""Versions whose structures are those below."""
SPECIAL = b"\xff"
"""Stands before the name of a token that no text spells."""
ERROR_BYTES = 1024
ID_BYTES = ctypes.sizeof(c_uint32)
KEPT_TEXTS, KEPT_BYTES = 256, 1024
"""Of what a grammar forces, whose ids are asked for in each step that comes by there: so many texts
of at most so many bytes."""

_Tokenize = ctypes.CFUNCTYPE(c_size_t, c_void_p, c_void_p, c_size_t, POINTER(c_uint32), c_size_t)


class _TokenizerInit(Structure):
    """LlgTokenizerInitV2."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("vocab_size", c_uint32),
        ("tok_eos", c_uint32),
        ("token_lens", c_void_p),
        ("token_bytes", c_char_p),
        ("tokenizer_json", c_char_p),
        ("tokenize_assumes_string", c_bool),
        ("tokenize_fn", _Tokenize),
        ("use_approximate_greedy_tokenize_fn", c_bool),
        ("tokenize_user_data", c_void_p),
        ("slices", c_void_p),
        ("tok_eos_extra", c_void_p),
        ("tok_eos_extra_count", c_uint32),
    )


class _ParserLimits(Structure):
    """LlgParserLimits."""

    _fields_ = (
        ("max_items_in_row", c_size_t),
        ("initial_lexer_fuel", c_uint64),
        ("step_lexer_fuel", c_uint64),
        ("step_max_items", c_size_t),
        ("max_lexer_states", c_size_t),
        ("max_grammar_size", c_size_t),
        ("precompute_large_lexemes", c_bool),
        ("verbose_errors", c_bool),
    )


class _ConstraintInit(Structure):
    """LlgConstraintInit."""

    _fields_ = (
        ("tokenizer", c_void_p),
        ("log_buffer_level", c_uint32),
        ("log_stderr_level", c_uint32),
        ("ff_tokens_ok", c_bool),
        ("backtrack_ok", c_bool),
        ("limits", _ParserLimits),
    )


_CALLS = {
    "llg_new_tokenizer_v2": (c_void_p, POINTER(_TokenizerInit), c_char_p, c_size_t),
    "llg_free_tokenizer": (None, c_void_p),
    "llg_constraint_init_set_defaults": (None, POINTER(_ConstraintInit), c_void_p),
    "llg_new_matcher": (c_void_p, POINTER(_ConstraintInit), c_char_p, c_char_p),
    "llg_clone_matcher": (c_void_p, c_void_p),
    "llg_free_matcher": (None, c_void_p),
    "llg_matcher_get_error": (c_char_p, c_void_p),
    "llg_matcher_consume_token": (c_int32, c_void_p, c_uint32),
    "llg_matcher_compute_mask_into": (c_int32, c_void_p, c_void_p, c_size_t),
    "llg_matcher_rollback": (c_int32, c_void_p, c_size_t),
    "llg_matcher_is_accepting": (c_bool, c_void_p),
}
_CANCELS = {
    "llg_matcher_get_cancellation_handle": (c_void_p, c_void_p),
    "llg_cancel": (None, c_void_p),
    "llg_free_cancellation_handle": (None, c_void_p),
}
"""Since 1.9."""


@cache
def library() -> ctypes.CDLL | None:
    """None where the wheel has another version, or does not export its C interface."""
    import llguidance._lib  # megabytes: only where a grammar is asked for

    try:
        found = ctypes.CDLL(llguidance._lib.__file__)
        found.llg_get_version.restype = c_char_p
        if not KNOWN.search(found.llg_get_version().decode()):
            return None
        _declare(found, _CALLS)
    except (AttributeError, OSError):
        return None
    return found


def _declare(lib: ctypes.CDLL, calls: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises AttributeError for one that is not there."""
    for name, (result, *arguments) in calls.items():
        call = getattr(lib, name)
        call.restype, call.argtypes = result, arguments


@cache
def _addresses(lib: ctypes.CDLL) -> tuple[int, int, int] | None:
    """Of what a ``NativeFill`` calls; None where nothing cancels a matcher."""
    try:
        _declare(lib, _CANCELS)
    except AttributeError:
        return None
    names = "llg_matcher_consume_token", "llg_matcher_compute_mask_into", "llg_cancel"
    consume, mask, cancel = (ctypes.cast(getattr(lib, name), c_void_p).value or 0 for name in names)
    return consume, mask, cancel


class CLibrary:
    """Raises ValueError for a vocabulary that the library refuses."""

    def __init__(self, lib: ctypes.CDLL, table: TokenSpellings) -> None:
        self._lib = lib
        self._trie = _Trie(lib, table)
        self._init = _ConstraintInit()
        lib.llg_constraint_init_set_defaults(byref(self._init), self._trie.pointer)
        self._init.log_stderr_level = 0
        self._init.limits.max_lexer_states = MAX_LEXER_STATES
        self._init.limits.verbose_errors = False

    def compile(self, text: str) -> CStand:
        made = self._lib.llg_new_matcher(byref(self._init), b"llguidance", text.encode())
        stand = CStand(self._lib, self._trie, made)
        stand.check()
        return stand


class _Trie:
    """Freed with the last matcher that holds it."""

    def __init__(self, lib: ctypes.CDLL, table: TokenSpellings) -> None:
        self._lib, self.pointer = lib, None
        self._tokenize = _Tokenize(_tokenizer(table.encode))
        special = frozenset(table.special_ids)
        tokens = [_marked(token) if i in special else token for i, token in enumerate(table.tokens)]
        lengths = np.array([len(token) for token in tokens], np.uint32)
        ends = np.array(table.ends[1:], np.uint32)
        init = _TokenizerInit(
            struct_size=ctypes.sizeof(_TokenizerInit),
            vocab_size=len(tokens),
            tok_eos=table.ends[0],
            token_lens=lengths.ctypes.data,
            token_bytes=b"".join(tokens),
            tokenize_assumes_string=True,
            tokenize_fn=self._tokenize,
            tok_eos_extra=ends.ctypes.data,
            tok_eos_extra_count=len(ends),
        )
        error = ctypes.create_string_buffer(ERROR_BYTES)
        self.pointer = lib.llg_new_tokenizer_v2(byref(init), error, ERROR_BYTES)
        if not self.pointer:
            raise ValueError(reason(error.value.decode(errors="replace")))

    def __del__(self) -> None:
        self._lib.llg_free_tokenizer(self.pointer)


class CStand:
    def __init__(self, lib: ctypes.CDLL, trie: _Trie, pointer: int) -> None:
        """``pointer`` is freed with this."""
        self._lib = lib
        self._trie = trie
        self._pointer = pointer
        self._calls = _addresses(lib)
        self._handle: int | None = None
        """What cancels it; nothing yet."""

    def __del__(self) -> None:
        if self._handle is not None:
            self._lib.llg_free_cancellation_handle(self._handle)
        self._lib.llg_free_matcher(self._pointer)

    def copy(self) -> CStand:
        return CStand(self._lib, self._trie, self._lib.llg_clone_matcher(self._pointer))

    def consume(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._lib.llg_matcher_consume_token(self._pointer, token):
                self.check()

    def fill(self, bits: Bits) -> None:
        if self._lib.llg_matcher_compute_mask_into(self._pointer, bits.ctypes.data, bits.nbytes):
            self.check()
            raise RuntimeError(f"masks of this vocabulary do not have {bits.nbytes} bytes")

    def native(self, tokens: Sequence[int]) -> NativeFill | None:
        calls = self._calls
        if calls is None:
            return None
        if self._handle is None:
            self._handle = self._lib.llg_matcher_get_cancellation_handle(self._pointer)
        return NativeFill(calls, self._pointer, self._handle or 0, tokens)

    def rollback(self, n_tokens: int) -> None:
        if self._lib.llg_matcher_rollback(self._pointer, n_tokens):
            self.check()

    def is_accepting(self) -> bool:
        return bool(self._lib.llg_matcher_is_accepting(self._pointer))

    def check(self) -> None:
        """Raises ValueError with what the library says against it."""
        error = self._lib.llg_matcher_get_error(self._pointer)
        if error is not None:
            raise ValueError(reason(error.decode(errors="replace")))


def _marked(token: bytes) -> bytes:
    return token if token.startswith(SPECIAL) else SPECIAL + token


def _tokenizer(encode: Callable[[str], list[int]]) -> Callable[..., int]:
    kept = lru_cache(KEPT_TEXTS)(lambda text: _ids(encode, text))

    def tokenize(_: object, text: int, n_bytes: int, out: Any, n_most: int) -> int:
        """The number of ids, of which as many are written as there is room for."""
        given = ctypes.string_at(text, n_bytes)
        ids = kept(given) if n_bytes <= KEPT_BYTES else _ids(encode, given)
        ctypes.memmove(out, ids, min(len(ids), ID_BYTES * n_most))
        return len(ids) // ID_BYTES

    return tokenize


def _ids(encode: Callable[[str], list[int]], text: bytes) -> bytes:
    return np.array(encode(text.decode()), np.uint32).tobytes()
