"""``text_offset`` of output tokens: characters of the text that they are part of."""

from __future__ import annotations

from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.core.params import SamplingParams
from kvasir.engine.choice import Choice
from kvasir.serve.logprobs import CompletionLogprobs
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.tokenizer import Tokenizer
from tests.tiny_vocab import byte_level

TOKENIZER = Tokenizer(spec_from_gguf(byte_level()))


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special=False)


def offsets(tokens: list[int], skip_special: bool = True, begin: int = 0) -> tuple[list[int], str]:
    made = CompletionLogprobs(TOKENIZER, skip_special=skip_special, begin=begin)
    choice = Choice(0, TOKENIZER, SamplingParams(skip_special_tokens=skip_special))
    found: list[int] = []
    text = "p" * begin
    for n, token in enumerate(tokens, start=1):
        finish = "length" if n == len(tokens) else None
        text += choice.feed(TokenEvent(id=0, tokens=(token,), finish=finish)).text
        item = TokenLogprob(token=token, logprob=-1.0, rank=1)
        piece = made.piece([item])
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
