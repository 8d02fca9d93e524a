"""Text to token ids and back. Decoding is defined on bytes, so that it can be streamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal

import msgspec
import tokenizers

from kvasir.core.errors import ModelError, RequestError
from kvasir.tokenizer.alphabet import bytes_of
from kvasir.tokenizer.spelling import Speller, encode, twin_of

PieceStyle = Literal["byte_level", "metaspace", "word_piece"]
CONTINUES = "##"
"""Before WordPiece's tokens that go on with a word."""
_PROBE = "a"
MAX_IDS = 1 << 21
"""Above any vocabulary: a file that names a higher id is corrupt."""


class TokenizerSpec(msgspec.Struct, frozen=True):
    """What a model file says about its tokenizer."""

    backend: tokenizers.Tokenizer
    style: PieceStyle
    """How a token spells its bytes: GPT-2's alphabet; ▁ for space and <0xAB> for a byte; a space
    before all but those that go on with a word."""
    strip_space: bool
    """A leading space of a decoded text was put there by the encoder."""
    added_ids: frozenset[int]
    """Tokens that spell themselves, in any style."""
    special_ids: frozenset[int]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """All ids that end a generation, the model's own end-of-sequence first."""
    n_embeddings: int | None = None
    """Ids that the model has, where that is known."""


class Tokenizer:
    """Immutable after construction and safe to share between threads.

    Ids beyond the vocabulary (models pad their tables) decode to nothing.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        """Raises ModelError when it surrounds a text with ids that the model does not have."""
        self._spec = spec
        self._backend = spec.backend
        self._backend.no_truncation()
        self._backend.no_padding()
        if isinstance(self._backend.model, tokenizers.models.BPE):
            self._backend.model.dropout = None  # is of training: other tokens each time
        self.bos_id = spec.bos_id
        self.eos_ids = spec.eos_ids
        self.special_ids = spec.special_ids
        self.strips_space = spec.strip_space
        last = max(spec.added_ids, default=-1) + 1
        self.vocab_size = max(self._backend.get_vocab_size(with_added_tokens=False), last)
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self.token_texts = _TokenTexts(self)
        self._affixes = self._find_affixes(spec.n_embeddings or MAX_IDS)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of ``text``.

        ``add_special`` adds what the model puts around a prompt (usually a BOS token); text from a
        chat template has it already. Without ``parse_special`` the names of special tokens in
        ``text`` are plain text. Raises RequestError for text that is not valid Unicode.
        """
        if parse_special:
            return _encoding(self._backend, text, add_special).ids
        ids = self.spell([text])
        return self.surround(ids) if add_special else ids

    def begins(self, text: str, add_special: bool = True) -> list[int]:
        """Where in ``text`` (characters) each token of ``encode`` begins. What stands for no text
        of its own is where the text before it ends."""
        begins: list[int] = []
        at = 0
        for begin, end in _encoding(self._bare, text).offsets:
            begins.append(min(begin, at))  # what normalizing left out is the next token's
            at = max(end, at)
        before, after = self._affixes if add_special else ((), ())
        return [0] * len(before) + begins + [at] * len(after)

    def spell(self, parts: Sequence[str | int]) -> list[int]:
        """Ids of the text that ``parts`` make together: special tokens by their ids, and texts that
        hold none, whatever they name. Raises RequestError for text that is not valid Unicode."""
        try:
            return self._speller.encode(parts)
        except (UnicodeEncodeError, TypeError):
            raise _not_unicode() from None

    def specials(self, text: str) -> list[tuple[int, int, int]]:
        """Id, begin and end (characters) of each special token that ``encode`` sees in ``text``."""
        found = _encoding(self._backend, text)
        places = zip(found.ids, found.offsets, strict=True)
        return [(i, *span) for i, span in places if i in self.special_ids]

    def normalize(self, text: str) -> str:
        """``text`` as it is when special tokens are looked for in it for the last time. Raises
        RequestError for text that is not valid Unicode."""
        if self._normalizer is None:
            return text
        try:
            return self._normalizer.normalize_str(text)
        except (UnicodeEncodeError, TypeError):
            raise _not_unicode() from None

    def surround(self, ids: Sequence[int]) -> list[int]:
        """``ids`` of a text with what ``add_special`` puts before and after them."""
        before, after = self._affixes
        return [*before, *ids, *after]

    @cached_property
    def joins_pairs(self) -> bool:
        """Whether it puts something between two texts that are read as one prompt."""
        return bool(self._joint[1])

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], int]:
        """Ids of two texts as one prompt, with what the model puts before, between and behind them;
        and where tokens of the second kind begin, 0 where it does not tell kinds apart."""
        before, between, after, n_first = self._joint
        ids = [*before, *first, *between, *second, *after]
        return ids, len(before) + len(first) + n_first if n_first >= 0 else 0

    @cached_property
    def _joint(self) -> tuple[list[int], list[int], list[int], int]:
        """What stands before, between and behind two texts, and how much of what is between is of
        the first kind; -1 where all is."""
        one = self._backend.encode(_PROBE, add_special_tokens=False).ids
        found = self._backend.encode(_PROBE, _PROBE, add_special_tokens=True)
        ids, n = found.ids, len(one)
        places = [i for i in range(len(ids) - n + 1) if ids[i : i + n] == one]
        if len(places) != 2 or places[1] == places[0] + n:
            return [], [], [], -1
        first, second = places
        n_first = found.type_ids.index(1) - first - n if 1 in found.type_ids else -1
        return ids[:first], ids[first + n : second], ids[second + n :], n_first

    def decode(self, ids: Iterable[int], skip_special: bool = True, continues: bool = False) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        ``continues``: the text goes on after a prompt, so that a leading space belongs to it.
        """
        skipped = self.special_ids if skip_special else frozenset()
        data = b"".join(self.token_bytes(i) for i in ids if i not in skipped)
        if self.strips_space and not continues:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that ``token_id`` stands for, a special token's name included."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        data = self._bytes[token_id]
        if data is None:
            data = self._bytes[token_id] = self._spell(token_id)
        return data

    def piece(self, token_id: int) -> str | None:
        """The token's name in the vocabulary, None when there is none."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None

    @property
    def ends(self) -> dict[str, int]:
        """Ids that end an answer, by what they are called."""
        return {self.piece(i) or f"<[{i}]>": i for i in self.eos_ids}

    def token_id(self, piece: str) -> int | None:
        """The id of a token by its name in the vocabulary."""
        return self._backend.token_to_id(piece)

    @cached_property
    def _speller(self) -> Speller:
        return Speller(self._backend, self.special_ids)

    @cached_property
    def _normalizer(self) -> tokenizers.normalizers.Normalizer | None:
        """None where special tokens are looked for in the text as it is, which is the rule."""
        added = self._backend.get_added_tokens_decoder()
        is_needed = any(added[i].normalized for i in self.special_ids if i in added)
        return self._backend.normalizer if is_needed else None

    @cached_property
    def _bare(self) -> tokenizers.Tokenizer:
        """Post-processors take spaces out of the places of words; this one has none."""
        return twin_of(self._backend)

    def _find_affixes(self, n_ids: int) -> tuple[list[int], list[int]]:
        """What ``encode`` puts before and after a text. Raises ModelError."""
        try:
            inner, outer = self.encode(_PROBE, add_special=False), self.encode(_PROBE)
        except RequestError as error:
            raise ModelError(error.message) from None
        at = next(i for i in range(len(outer) + 1) if outer[i : i + len(inner)] == inner)
        before, after = outer[:at], outer[at + len(inner) :]
        if max(before + after, default=0) >= n_ids:
            raise ModelError(
                f"post_processor of the tokenizer puts the ids {before + after} around a text, "
                f"the model has the ids 0 to {n_ids - 1}"
            )
        return before, after

    def _spell(self, token_id: int) -> bytes:
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if self._spec.style == "metaspace":
            return _spell_metaspace(piece)
        if token_id in self._spec.added_ids:
            return piece.encode()
        if self._spec.style == "word_piece":
            return _spell_word_piece(piece)
        return bytes_of(piece)


class _TokenTexts(dict[int, str | None]):
    """The texts of tokens whose bytes are whole characters, None of others; looked up where they
    are needed, and known from then on."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str | None:
        try:
            text = self._tokenizer.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            text = None
        if 0 <= token_id < self._tokenizer.vocab_size:
            self[token_id] = text
        return text


def _encoding(
    backend: tokenizers.Tokenizer, text: str, add_special: bool = False
) -> tokenizers.Encoding:
    try:
        return encode(backend, text, add_special)
    except (UnicodeEncodeError, TypeError):
        raise _not_unicode() from None
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise RequestError(f"the model's tokenizer cannot read the text: {error}") from None


def is_library_error(error: BaseException) -> bool:
    """The library raises bare Exception, and where it panics a BaseException of its own."""
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


def _not_unicode() -> RequestError:
    return RequestError("the text holds a lone surrogate, which is not valid Unicode")


def _spell_metaspace(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece.replace("▁", " ").encode()


def _spell_word_piece(piece: str) -> bytes:
    rest = piece.removeprefix(CONTINUES)
    return (rest if rest != piece else f" {piece}").encode()
