"""Incremental decoding: text as tokens arrive, without ever splitting a character."""

from __future__ import annotations

import codecs

from kvasir.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes one stream of tokens; O(bytes of the token) each.

    For every sequence of ids, the concatenation of what ``push`` returned for each and what
    ``flush`` returned at the end equals ``tokenizer.decode(ids, skip_special, continues)``. A
    character is returned with the token that completes it; bytes that can no longer become one are
    returned as U+FFFD with the token that shows it, or by ``flush``.
    """

    __slots__ = ("_decoder", "_holds", "_skipped", "_strips", "_texts", "_tokenizer")

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool = True, continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = tokenizer.token_texts
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._strips = tokenizer.strips_space and not continues
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._holds = False
        """Whether bytes are held back, which go with those of the next token."""

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes, often all of its own; may be empty."""
        if token_id in self._skipped:
            return ""
        if not (self._holds or self._strips):
            text = self._texts[token_id]
            if text is not None:
                return text
        return self._decode(token_id)

    def _decode(self, token_id: int) -> str:
        data = self._tokenizer.token_bytes(token_id)
        if self._strips and data:
            data = data.removeprefix(b" ")
            self._strips = False
        text = self._decoder.decode(data)
        self._holds = bool(self._decoder.getstate()[0])
        return text

    def n_broken(self, token_id: int) -> int:
        """How many U+FFFD the bytes held back become when ``token_id`` follows."""
        if token_id in self._skipped:
            return 0
        first = self._tokenizer.token_bytes(token_id)[:1]
        held = self._decoder.getstate()[0]
        return len((held + first).decode("utf-8", errors="replace")) - 1 if first else 0

    def flush(self) -> str:
        """What the bytes held back amount to, "" or U+FFFD; nothing is held back any more."""
        self._holds = False
        return self._decoder.decode(b"", final=True)


class Places:
    """Where the tokens of a stream begin in its text, in characters; a token that goes on with a
    character begins where that does."""

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool = True, continues: bool = False, at: int = 0
    ) -> None:
        """``at``: the characters before the first token."""
        self._decoder = StreamDecoder(tokenizer, skip_special, continues)
        self._at = at

    def next(self, token_id: int) -> int:
        begin = self._at + self._decoder.n_broken(token_id)
        self._at += len(self._decoder.push(token_id))
        return begin
