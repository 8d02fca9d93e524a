"""Log probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvasir.core.messages import TokenLogprob
from kvasir.tokenizer.detokenize import Places
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

    ``text_offset`` says where in the choice's text (characters) a token begins. A token without
    text is where the next one begins; those of a stop string that was cut off are behind the end.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, begin: int) -> None:
        """``begin``: characters of the prompt that the choice's text begins with."""
        self._tokenizer = tokenizer
        self._places = Places(tokenizer, skip_special, continues=True, at=begin)

    def of_prompt(
        self, first: int, logprobs: Iterable[TokenLogprob], begins: Sequence[int]
    ) -> dict[str, Any]:
        """``first`` is the prompt's first token, which has no probability; ``begins`` are where its
        tokens begin."""
        piece = self._piece(tuple(logprobs), begins)
        piece["tokens"].insert(0, _text(self._tokenizer, first))
        piece["token_logprobs"].insert(0, None)
        piece["top_logprobs"].insert(0, None)
        return piece

    def piece(self, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
        """Of the tokens that come next."""
        items = tuple(logprobs)
        return self._piece(items, [self._places.next(item.token) for item in items])

    def _piece(self, items: Sequence[TokenLogprob], begins: Sequence[int]) -> dict[str, Any]:
        return {
            "text_offset": list(begins),
            "token_logprobs": [max(item.logprob, FLOOR) for item in items],
            "tokens": [_text(self._tokenizer, item.token) for item in items],
            "top_logprobs": [self._top(item) for item in items],
        }

    def _top(self, item: TokenLogprob) -> dict[str, float]:
        """Likeliest first. Of tokens with the same text the likeliest is kept; the chosen one is
        always in."""
        top: dict[str, float] = {}
        for token, value in (*item.top, (item.token, item.logprob)):
            top.setdefault(_text(self._tokenizer, token), max(value, FLOOR))
        return top
