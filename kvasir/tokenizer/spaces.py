"""What SentencePiece does to a text first: a map of characters, and spaces as ▁."""

from __future__ import annotations

import msgspec
from tokenizers import Regex, normalizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.tokenizer import is_library_error

SPACE = "▁"


class Spaces(msgspec.Struct, frozen=True):
    """Of a SentencePiece model's ``normalizer_spec``."""

    charsmap: bytes = b""
    """``precompiled_charsmap``."""
    has_prefix: bool = True
    """``add_dummy_prefix``: a text begins with a space."""
    is_merged: bool = False
    """``remove_extra_whitespaces``: at its ends, and all but one of several."""

    def normalizer(self, field: str) -> normalizers.Normalizer:
        """Raises ModelError, which names ``field``, for a map that is corrupt."""
        steps: list[normalizers.Normalizer] = []
        if self.charsmap:
            steps.append(_precompiled(self.charsmap, field))
        if self.is_merged:
            steps.append(normalizers.Replace(Regex(" {2,}"), " "))
            steps.append(normalizers.Replace(Regex(r"\A | \z"), ""))
        if self.has_prefix:
            steps.append(normalizers.Prepend(SPACE))
        return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def _precompiled(charsmap: bytes, field: str) -> normalizers.Normalizer:
    """A length, a trie of that many bytes (whole words), and texts that end with a zero byte."""
    size = int.from_bytes(charsmap[:4], "little")
    texts = charsmap[4 + size :]
    if len(charsmap) < 4 or size == 0 or size % 4 or not texts.endswith(b"\0"):
        raise ModelError(f"{field} of {len(charsmap)} bytes is corrupt: it holds no map")
    try:
        return normalizers.Precompiled(charsmap)
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise ModelError(f"{field} is corrupt: {error}") from None
