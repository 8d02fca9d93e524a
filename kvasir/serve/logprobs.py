"""Log probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvasir.core.messages import TokenLogprob
from kvasir.tokenizer.tokenizer import Tokenizer

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", errors="replace")


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {
        "token": data.decode("utf-8", errors="replace"),
        "logprob": max(logprob, FLOOR),
        "bytes": list(data),
    }


def chat_logprobs(tokenizer: Tokenizer, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    """``logprobs`` of a chat choice: one entry per token. ``bytes`` are the token's own, also of
    half a character."""
    return {
        "content": [
            {
                **_entry(tokenizer, item.token, item.logprob),
                "top_logprobs": [_entry(tokenizer, token, value) for token, value in item.top],
            }
            for item in logprobs
        ],
        "refusal": None,
    }


class CompletionLogprobs:
    """``logprobs`` of a text completion, piece by piece.

    ``text_offset`` counts characters of the token texts since the start of the choice's text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0

    def piece(self, logprobs: Iterable[TokenLogprob], first: int | None = None) -> dict[str, Any]:
        """``first`` is a prompt's first token, which has no probability."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        if first is not None:
            tokens.append(_text(self._tokenizer, first))
            values.append(None)
            tops.append(None)
        for item in logprobs:
            tokens.append(_text(self._tokenizer, item.token))
            values.append(max(item.logprob, FLOOR))
            tops.append(self._top(item))
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "text_offset": offsets,
            "token_logprobs": values,
            "tokens": tokens,
            "top_logprobs": tops,
        }

    def _top(self, item: TokenLogprob) -> dict[str, float]:
        """Likeliest first. Of tokens with the same text the likeliest is kept; the chosen one is
        always in."""
        top: dict[str, float] = {}
        for token, value in (*item.top, (item.token, item.logprob)):
            top.setdefault(_text(self._tokenizer, token), max(value, FLOOR))
        return top
