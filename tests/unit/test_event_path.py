"""The way of one event of a stream: what is short there says what the long way says."""

from __future__ import annotations

import codecs
import random
from collections.abc import Callable
from typing import Any

import pytest

from kvasir.core.messages import TokenEvent
from kvasir.serve.answer import Tally
from kvasir.serve.dialects.table import DIALECTS
from kvasir.serve.resolved import Envelope
from kvasir.serve.streams import READ_ENDS, READ_EVENTS, in_turns
from kvasir.serve.text import TextModel
from kvasir.text.choice import Choice, Delta
from kvasir.tokenizer.detokenize import StreamDecoder
from kvasir.validation.sampling import SamplingParams
from tests.fake_run import resolved_of, toy_text

TALK = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}
USAGE = {"stream_options": {"include_usage": True}}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat", TALK),
    "chat, two choices": ("chat", {**TALK, "n": 2}),
    "chat, usage": ("chat", {**TALK, **USAGE}),
    "completions": ("completions", TEXT),
    "completions, echo": ("completions", {**TEXT, "echo": True}),
    "completions, usage": ("completions", {**TEXT, **USAGE}),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


def grammar_of(name: str, text: TextModel) -> tuple[Any, Tally]:
    dialect = DIALECTS[ASKED[name][0]]
    resolved = resolved_of(dialect, {**ASKED[name][1], "stream": True}, text)
    grammar = dialect.grammar(resolved, Envelope("id", 1_700_000_000), text.tokenizer)
    return grammar, Tally(resolved.job, 0.0)


@pytest.mark.parametrize("name", ASKED)
def test_text_alone_is_worded_as_any_delta_is(name: str, text: TextModel) -> None:
    short, tally = grammar_of(name, text)
    plain, _ = grammar_of(name, text)
    plain._tells_text_alone = False
    n_choices, n_short = tally.job.n_choices, 0
    deltas = [
        Delta(i, said, (1,))
        for said in ("a", "", 'say "so"\n', "ä\u2028\U0001f600")
        for i in range(n_choices)
    ]
    for delta in [*deltas, Delta(0, ".", (1,), finish="stop", stop_reason="end")]:
        n_short += short._goes_on_with_text(delta)
        expected = [b"".join(event) for event in plain.events(delta, tally)]
        assert [b"".join(event) for event in short.events(delta, tally)] == expected
    assert n_short == 3 * n_choices


def worded_by_all(body: dict[str, Any], text: TextModel) -> bool:
    dialect = DIALECTS["chat"]
    resolved = resolved_of(dialect, {**TALK, **body, "stream": True}, text)
    grammar: Any = dialect.grammar(resolved, Envelope("id", 0), text.tokenizer)
    return not grammar._goes_on_with_text(Delta(0, "a", (1,)))


def test_what_tells_more_than_text_goes_the_long_way(text: TextModel) -> None:
    each = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    assert worded_by_all({"logprobs": True}, text)
    assert worded_by_all({"return_token_ids": True}, text)
    assert worded_by_all(each, text)
    assert not worded_by_all({}, text)


@pytest.mark.parametrize("continues", [False, True])
def test_every_token_completes_what_plain_decoding_completes(
    continues: bool, text: TextModel
) -> None:
    """Tokens of the toy are bytes: most of these are parts of characters, or of none."""
    tokenizer, chance = text.tokenizer, random.Random(5)
    for _ in range(200):
        ids = [chance.choice([*"aäß€\U0001f600".encode(), 255, 300]) for _ in range(30)]
        decoder = StreamDecoder(tokenizer, continues=continues)
        plain = codecs.getincrementaldecoder("utf-8")("replace")
        said = [decoder.push(i) for i in ids]
        assert said == [plain.decode(tokenizer.token_bytes(i)) for i in ids]
        assert decoder.flush() == plain.decode(b"", final=True)
        assert decoder.push(97) == "a"


def test_texts_are_those_of_whole_characters(text: TextModel) -> None:
    texts, size = text.tokenizer.token_texts, text.tokenizer.vocab_size
    assert (texts[97], texts[0xC3], texts[size], texts[-1]) == ("a", None, "", "")
    assert {97, 0xC3} <= texts.keys()
    assert not {size, -1} & texts.keys(), "ids that nobody has take no memory"


def test_a_token_that_is_its_text_alone_is_read_as_any(text: TextModel) -> None:
    events = [TokenEvent(0, (byte,), n_cached=3 * (i == 0)) for i, byte in enumerate("aä".encode())]
    short = Choice(0, text.tokenizer, SamplingParams())
    plain = Choice(0, text.tokenizer, SamplingParams())
    plain._needs_look = True
    for event in events:
        assert short.feed(event) == plain.feed(event)
    assert short.n_tokens == plain.n_tokens == len(events)


def n_ended(n: int) -> Callable[[int], TokenEvent]:
    return lambda i: TokenEvent(i, (1,), finish="stop" if i < n else None)


def test_ends_are_told_a_few_at_a_time() -> None:
    """Each takes as long as many events that end nothing."""
    n = 2 * READ_EVENTS
    assert list(in_turns(())) == [()]
    for n_ends, size in ((0, READ_EVENTS), (READ_ENDS, READ_EVENTS), (READ_ENDS + 1, READ_ENDS)):
        events = tuple(map(n_ended(n_ends), range(n)))
        parts = list(in_turns(events))
        assert [len(part) for part in parts] == [size] * (n // size)
        assert tuple(event for part in parts for event in part) == events
