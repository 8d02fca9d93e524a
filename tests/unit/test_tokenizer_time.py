"""R48: texts made to hurt a tokenizer cost time in proportion to their length."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.tokenizer import Tokenizer
from tests import tiny_vocab
from tests.forms import n_of

UNITS = (
    "a",
    " ",
    "\n",
    "\t ",
    "7",
    "'s",
    "\u0e01",
    "e\u0301",
    "👨\u200d👩\u200d👧",
    "<|im_start|>",
)
LARGE = n_of(2**16, 2**18)
SMALL = LARGE // 16
MOST = 8.0
"""Times the cost of a byte may rise; it rose 16 times if the cost were quadratic."""


KINDS = ("byte_level", "sentence_piece", "word_piece", "unigram", "characters")
SPLIT_BY_HAND = ("afmoe", "superbpe", "tiny_aya")
"""Expressions that count digits from the end of a number."""


@pytest.fixture(scope="module", params=[*KINDS, *SPLIT_BY_HAND])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param in SPLIT_BY_HAND:
        extra = {"tokenizer.ggml.pre": request.param}
        return Tokenizer(spec_from_gguf(tiny_vocab.byte_level(**extra)))
    return Tokenizer(spec_from_gguf(getattr(tiny_vocab, request.param)()))


def per_byte(tokenizer: Tokenizer, unit: str, n_bytes: int) -> float:
    text = unit * (n_bytes // len(unit.encode()))
    best = float("inf")
    for _ in range(3 if n_bytes == SMALL else 1):
        start = time.process_time()
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        best = min(best, time.process_time() - start)
    unknown = {tokenizer.token_id(name) for name in ("<unk>", "[UNK]")}
    assert not tokenizer.special_ids & set(ids) - unknown
    return best / n_bytes


@pytest.mark.parametrize("unit", UNITS)
def test_r48_time_is_linear(tokenizer: Tokenizer, unit: str) -> None:
    tokenizer.encode(unit, parse_special=False)
    assert per_byte(tokenizer, unit, LARGE) < MOST * per_byte(tokenizer, unit, SMALL) + 1e-7


@pytest.mark.parametrize("parse_special", [True, False])
def test_a_long_text_leaves_other_threads_their_turn(
    tokenizer: Tokenizer, parse_special: bool
) -> None:
    """Once in a few times at least: a busy machine leaves a thread none, too."""
    tokenizer.encode("a", parse_special=parse_special)
    assert any(longest_wait(tokenizer, parse_special) < 0.5 for _ in range(5))


def longest_wait(tokenizer: Tokenizer, parse_special: bool) -> float:
    """Of a thread beside one that encodes, as a share of the time that this takes."""
    text, ends = "the quick " * 40_000, []

    def encode() -> None:
        tokenizer.encode(text, parse_special=parse_special)
        ends.append(time.perf_counter())

    thread = threading.Thread(target=encode)
    looks = [time.perf_counter()]
    thread.start()
    while not ends:
        time.sleep(0.001)
        looks.append(time.perf_counter())
    thread.join()
    return max(after - before for before, after in pairwise(looks)) / (ends[0] - looks[0])
