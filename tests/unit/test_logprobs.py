"""Log probabilities as they are worded: where tokens begin, and a few at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.serve.frames import encode_scores
from kvasir.serve.logprobs import (
    AT_A_TIME,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    TokenNames,
    joined,
)
from kvasir.serve.outbox import SCORES
from kvasir.serve.parts import Parts
from kvasir.serve.slices import at_once
from kvasir.text.choice import Choice
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.sampling import SamplingParams
from tests.tiny_vocab import byte_level

TOKENIZER = Tokenizer(spec_from_gguf(byte_level()))


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special=False)


def said(parts: Parts) -> Any:
    return json.loads(b"".join(parts))


def offsets(tokens: list[int], skip_special: bool = True, begin: int = 0) -> tuple[list[int], str]:
    made = CompletionLogprobs(TokenNames(TOKENIZER), skip_special=skip_special, begin=begin)
    choice = Choice(0, TOKENIZER, SamplingParams(skip_special_tokens=skip_special))
    found: list[int] = []
    text = "p" * begin
    for n, token in enumerate(tokens, start=1):
        finish = "length" if n == len(tokens) else None
        text += choice.feed(TokenEvent(id=0, tokens=(token,), finish=finish)).text
        item = TokenLogprob(token=token, logprob=-1.0, rank=1)
        at_once(made.add([item]))
        piece = said(joined([made.take()]))
        assert piece["tokens"] == [TOKENIZER.token_bytes(token).decode("utf-8", "replace")]
        found += piece["text_offset"]
    return found, text


def test_characters_of_several_tokens() -> None:
    """Three bytes of 好 begin where it does, and count as one character; 你 is one token of two."""
    assert offsets(ids("the好fox")) == ([0, 3, 3, 3, 4], "the好fox")
    assert offsets(ids("the好fox"), begin=7) == ([7, 10, 10, 10, 11], "ppppppp" + "the好fox")


def test_special_tokens_count_where_they_are_shown() -> None:
    end = TOKENIZER.token_id("<|im_end|>") or 0
    tokens = [*ids("the"), end, *ids(" fox"), end]
    assert offsets(tokens) == ([0, 3, 3, 7], "the fox")
    shown = "the<|im_end|> fox<|im_end|>"
    assert offsets(tokens, skip_special=False) == ([0, 3, 13, 17], shown)


def test_bytes_that_are_no_text() -> None:
    half = ids("好")[:2]
    assert offsets([*half, *ids("the"), *half]) == ([0, 0, 1, 4, 4], "\ufffdthe\ufffd")


def name(token: int) -> str:
    return TOKENIZER.token_bytes(token).decode("utf-8", "replace")


def scored(n: int, n_top: int) -> tuple[TokenLogprob, ...]:
    """Some minus infinity, some with alternatives that are spelled alike."""
    size = TOKENIZER.vocab_size + 3
    return tuple(
        TokenLogprob(
            i * 7 % size,
            -float("inf") if i % 5 == 0 else -0.1 * i,
            top=tuple(((i * j + 3) % size, -0.5 * j) for j in range(n_top)),
        )
        for i in range(n)
    )


def plain_chat(items: Sequence[TokenLogprob]) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = TOKENIZER.token_bytes(token)
        return {"token": name(token), "logprob": max(logprob, -9999.0), "bytes": list(data)}

    content = [
        {**entry(x.token, x.logprob), "top_logprobs": [entry(*other) for other in x.top]}
        for x in items
    ]
    return {"content": content, "refusal": None}


def plain_tops(items: Sequence[TokenLogprob]) -> list[dict[str, float]]:
    tops: list[dict[str, float]] = [{} for _ in items]
    for top, item in zip(tops, items, strict=True):
        for token, value in (*item.top, (item.token, item.logprob)):
            top.setdefault(name(token), max(value, -9999.0))
    return tops


@pytest.mark.parametrize("n_top", [0, 20])
@pytest.mark.parametrize("n", [0, 1, AT_A_TIME, 3 * AT_A_TIME + 1])
def test_a_chat_is_worded_as_in_one_piece_and_a_few_tokens_at_a_time(n: int, n_top: int) -> None:
    items, made = scored(n, n_top), ChatLogprobs(TokenNames(TOKENIZER))
    assert sum(1 for _ in made.add(items)) == -(-n // AT_A_TIME)
    at_once(made.add(items[:1]))
    assert b"".join(made.take()) == compact(plain_chat([*items, *items[:1]]))
    assert said(made.take()) == {"content": [], "refusal": None}


@pytest.mark.parametrize("is_chat", [True, False])
def test_no_piece_takes_long(is_chat: bool) -> None:
    """CPU time of the longest piece, the least of three runs; a slice may be 5 ms."""
    items = scored(20 * SCORES, 20)

    def work() -> Iterator[None]:
        if is_chat:
            yield from ChatLogprobs(TokenNames(TOKENIZER)).add(items)
            return
        made = PromptLogprobs(TokenNames(TOKENIZER), 9, [*range(len(items) + 1)])
        for first in range(0, len(items), SCORES):
            yield from made.add(encode_scores(items[first : first + SCORES]))

    def longest() -> float:
        pieces, times = work(), [time.thread_time()]
        for _ in pieces:
            times.append(time.thread_time())
        return max(after - before for before, after in pairwise(times))

    assert min(longest() for _ in range(3)) <= 0.005


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def test_a_prompt_and_what_follows_it_are_one_table_and_worded_a_few_tokens_at_a_time() -> None:
    items, begins = scored(300, 20), list(range(5, 306))
    made = PromptLogprobs(TokenNames(TOKENIZER), 9, begins)
    pieces = 0
    for first in range(0, 300, 100):
        assert not made.is_whole
        pieces += sum(1 for _ in made.add(encode_scores(items[first : first + 100])))
    assert made.is_whole
    assert pieces >= 300 / AT_A_TIME
    output = CompletionLogprobs(TokenNames(TOKENIZER), skip_special=False, begin=400)
    last = TokenLogprob(ids("the")[0], -1.0)
    at_once(output.add([last]))
    assert b"".join(joined([made.table, output.take()])) == compact(
        {
            "text_offset": [*begins, 400],
            "token_logprobs": [None, *(max(x.logprob, -9999.0) for x in items), -1.0],
            "tokens": [name(9), *(name(x.token) for x in items), "the"],
            "top_logprobs": [None, *plain_tops([*items, last])],
        }
    )
    assert set(map(len, said(joined([output.take()])).values())) == {0}
