"""Log probabilities in OpenAI's two shapes: JSON, gathered piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kvasir.core.messages import TokenLogprob
from kvasir.serve.frames import decode_scores
from kvasir.serve.parts import Items, Parts, listed
from kvasir.serve.slices import Work
from kvasir.tokenizer.detokenize import Places
from kvasir.tokenizer.tokenizer import Tokenizer

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""
AT_A_TIME = 8
"""Tokens that are worded in one piece: half a millisecond, with 20 alternatives each."""
COLUMNS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def _pieces(items: Sequence[TokenLogprob]) -> Iterator[Sequence[TokenLogprob]]:
    for first in range(0, len(items), AT_A_TIME):
        yield items[first : first + AT_A_TIME]


class TokenNames(msgspec.Struct, frozen=True):
    """What tokens are called: their text, or vLLM's "token_id:7" where ids are wanted."""

    tokenizer: Tokenizer
    are_ids: bool = False

    def of(self, token: int) -> str:
        return f"token_id:{token}" if self.are_ids else self.text(token)

    def text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode("utf-8", errors="replace")

    def entry(self, token: int, logprob: float) -> dict[str, Any]:
        """In a chat."""
        data = list(self.tokenizer.token_bytes(token))
        return {"token": self.of(token), "logprob": max(logprob, FLOOR), "bytes": data}


class ChatLogprobs:
    """``logprobs`` of a chat choice: one entry per token. ``bytes`` are the token's own, also of
    half a character."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._content = Items()

    def add(self, logprobs: Sequence[TokenLogprob]) -> Work[None]:
        """Of the tokens that come next."""
        for piece in _pieces(logprobs):
            self._content.extend([self._worded(item) for item in piece])
            yield

    def take(self) -> Parts:
        """All that was added since the last time."""
        return [b'{"content":[', self.entries(), b'],"refusal":null}']

    def entries(self) -> bytearray:
        """The same without what is around it."""
        taken, self._content = self._content, Items()
        return taken.data

    def _worded(self, item: TokenLogprob) -> dict[str, Any]:
        top = [self._names.entry(token, value) for token, value in item.top]
        return {**self._names.entry(item.token, item.logprob), "top_logprobs": top}


class Table:
    """Consecutive tokens in the four columns of a text completion."""

    def __init__(self) -> None:
        self.columns = tuple(Items() for _ in COLUMNS)

    def add(self, names: TokenNames, begins: Sequence[int], items: Sequence[TokenLogprob]) -> None:
        """``begins``: where in the choice's text (characters) each of ``items`` begins."""
        offsets, values, tokens, tops = self.columns
        offsets.extend(begins)
        values.extend([max(item.logprob, FLOOR) for item in items])
        tokens.extend([names.of(item.token) for item in items])
        tops.extend([_top(names, item) for item in items])


def _top(names: TokenNames, item: TokenLogprob) -> dict[str, float]:
    """Likeliest first. Of tokens with the same text the likeliest is kept; the chosen one is always
    in."""
    top: dict[str, float] = {}
    for token, value in (*item.top, (item.token, item.logprob)):
        top.setdefault(names.of(token), max(value, FLOOR))
    return top


def joined(tables: Sequence[Table]) -> Parts:
    """``logprobs`` of a text completion whose tokens are those of ``tables``, one after another."""
    parts: Parts = []
    for i, name in enumerate(COLUMNS):
        parts.append(b'%b"%b":' % (b"," if i else b"{", name.encode()))
        parts += listed([data] for table in tables if (data := table.columns[i].data))
    return [*parts, b"}"]


class PromptLogprobs:
    """Of an echoed prompt: worded once, whatever number of choices repeat it."""

    def __init__(self, names: TokenNames, first: int, begins: Sequence[int]) -> None:
        """``first`` is the prompt's first token, which has no probability; ``begins`` are where its
        tokens begin."""
        self.table = Table()
        for column, value in zip(
            self.table.columns, (begins[0], None, names.of(first), None), strict=True
        ):
            column.extend([value])
        self._names = names
        self._begins = begins
        self._n = 1

    @property
    def is_whole(self) -> bool:
        return self._n == len(self._begins)

    def add(self, scores: bytes) -> Work[None]:
        """Of the tokens that come next; ``scores`` as in ``TokenEvent``."""
        items = decode_scores(scores)
        yield
        for piece in _pieces(items):
            last = self._n + len(piece)
            self.table.add(self._names, self._begins[self._n : last], piece)
            self._n = last
            yield


class PromptScores:
    """vLLM's ``prompt_logprobs``: by token id, null for the first token and those before
    ``start``."""

    def __init__(self, names: TokenNames, start: int = 0) -> None:
        self._names = names
        self._items = Items()
        self._items.extend([None] * max(1, start))

    def add(self, scores: bytes) -> Work[None]:
        """As ``PromptLogprobs``."""
        items = decode_scores(scores)
        yield
        for piece in _pieces(items):
            self._items.extend([self._worded(item) for item in piece])
            yield

    def parts(self) -> Parts:
        return [b"[", self._items.data, b"]"]

    def _worded(self, item: TokenLogprob) -> dict[str, Any]:
        ranked = [(token, value, i + 1) for i, (token, value) in enumerate(item.top)]
        return {
            str(token): {
                "logprob": max(value, FLOOR),
                "rank": rank,
                "decoded_token": self._names.text(token),
            }
            for token, value, rank in (*ranked, (item.token, item.logprob, item.rank))
        }


class CompletionLogprobs:
    """``logprobs`` of what a text completion generates.

    ``text_offset`` says where in the choice's text (characters) a token begins. A token without
    text is where the next one begins; those of a stop string that was cut off are behind the end.
    """

    def __init__(self, names: TokenNames, *, skip_special: bool, begin: int) -> None:
        """``begin``: characters of the prompt that the choice's text begins with."""
        self._names = names
        self._places = Places(names.tokenizer, skip_special, continues=True, at=begin)
        self._table = Table()

    def add(self, logprobs: Sequence[TokenLogprob]) -> Work[None]:
        """Of the tokens that come next."""
        for piece in _pieces(logprobs):
            begins = [self._places.next(item.token) for item in piece]
            self._table.add(self._names, begins, piece)
            yield

    def take(self) -> Table:
        """All that was added since the last time."""
        taken, self._table = self._table, Table()
        return taken
