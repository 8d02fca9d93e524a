"""Reasoning that ends when it is told to."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams, mask_words
from kvasir.core.request import EngineRequest
from kvasir.grammar.constraint import FREE, Constraint, choice_grammar
from kvasir.grammar.followers import ThinkingClock, special_bytes
from kvasir.grammar.masks import GrammarMasks
from kvasir.grammar.thinking import Limited, ThinkingLimit, closed_at, grammar_in, limit_in
from kvasir.sampling.masks import allows
from kvasir.serve.tokenlog import open_log, replay
from kvasir.toolcalls.format import Reasoning
from kvasir.toolcalls.grammar import thinking_first
from kvasir.toolcalls.reading import Reading
from tests.byte_grammar import EOS, byte_tokens
from tests.unit.test_grammar_masks import VOCAB, answers, engine, overlaps

END = "</think>"
CLOSE = tuple(END.encode())


def limit(*, is_open: bool = True, budget: int | None = 5, closes_at: int | None = None) -> Limited:
    thinking = ThinkingLimit(("<think>",), (END,), CLOSE, is_open, budget, closes_at)
    return Limited(thinking)


def forced(limited: Limited, said: str) -> str | None:
    """What must follow the bytes of ``said``."""
    clock = ThinkingClock(limited.thinking, lambda token: bytes([token]))
    place = clock.first()
    for byte in said.encode():
        place = clock.after(place, byte)
    found = clock.forced(place)
    return None if found is None else chr(found)


@pytest.mark.parametrize(
    ("said", "follows"),
    [
        ("abcd", None),
        ("abcde", "<"),
        ("abcde</thin", "k"),
        ("abcde</think>", None),
        ("ab</think>abcdefgh", None),
        ("abcd</", "<"),
        ("abcdé", "<"),
    ],
)
def test_the_end_is_forced_behind_the_budget(said: str, follows: str | None) -> None:
    assert forced(limit(), said) == follows


@pytest.mark.parametrize(
    ("said", "follows"),
    [
        ("abcdefghijkl", None),
        ("<think>abcde", "<"),
        (" \n<think>abcde", "<"),
        ("<thin", None),
        ("<think>abcd", None),
        ("x<think>abcdefghi", None),
    ],
)
def test_what_opens_reasoning_starts_the_count(said: str, follows: str | None) -> None:
    assert forced(limit(is_open=False), said) == follows


def test_no_budget_and_none_left() -> None:
    assert forced(limit(budget=0), "") == "<"
    assert forced(limit(budget=None), "abc" * 99) is None
    assert forced(limit(budget=None, closes_at=3), "ab") is None
    assert forced(limit(budget=None, closes_at=3), "abc") == "<"


def test_no_character_is_cut() -> None:
    clock = ThinkingClock(limit(budget=2).thinking, lambda token: bytes([token]))
    place = clock.first()
    for token in "a\N{EURO SIGN}".encode():
        assert clock.forced(place) is None
        place = clock.after(place, token)
    assert clock.forced(place) == ord("<")
    place = clock.first()
    for _ in range(5):
        assert clock.forced(place) is None
        place = clock.after(place, 0xE2)
    assert clock.forced(place) == ord("<")


def test_special_tokens_are_known_by_their_ids() -> None:
    """The same letters are text."""
    names = {300: special_bytes(300), 301: special_bytes(301)}
    clock = ThinkingClock(
        ThinkingLimit((300,), (301,), (301,), budget=2),
        lambda token: names.get(token, bytes([token % 256])),
    )
    place = clock.first()
    for token in (10, 300, 60, 61):
        assert clock.forced(place) is None
        place = clock.after(place, token)
    assert clock.forced(place) == 301
    assert clock.forced(clock.after(place, 301)) is None


def test_as_text_it_comes_back() -> None:
    made = limit(is_open=False)
    text = Limited(made.thinking, choice_grammar(["a"]).text).text()
    assert limit_in(text) == Limited(made.thinking, choice_grammar(["a"]).text)
    assert grammar_in(text) == choice_grammar(["a"]).text
    assert limit_in(choice_grammar(["a"]).text) is None
    later = limit_in(closed_at(text, 7))
    assert later is not None and later.thinking.closes_at == 7
    assert closed_at(closed_at(text, 7), 3) == closed_at(text, 7)
    assert closed_at("x", 3) == "x"


def thinking(grammar: Constraint, *, is_open: bool) -> str:
    reading = Reading(reasoning=Reasoning("<think>", END), is_open=is_open)
    return Limited(limit(is_open=is_open).thinking, thinking_first(reading, grammar).text).text()


STRUCTURE = choice_grammar(["yes", "no"])
CONSTRAINTS = (
    thinking(STRUCTURE, is_open=True),
    thinking(STRUCTURE, is_open=False),
    limit().text(),
    limit(budget=0).text(),
)


def request(i: int) -> EngineRequest:
    params = TokenParams(
        seed=i, max_tokens=40, stop_ids=(EOS,), constraint=CONSTRAINTS[i % len(CONSTRAINTS)]
    )
    return EngineRequest(i, tuple(range(i, i + 20)), params)


REQUESTS = [request(i) for i in range(8)]


@overlaps
def test_together_alone_drafted_preempted_and_replayed(overlap: bool) -> None:
    alone = {}
    for one in REQUESTS:
        alone |= answers(engine(), [one])
    assert answers(engine(overlap=overlap), REQUESTS) == alone
    assert answers(engine(overlap=overlap, drafts=dict(alone)), REQUESTS) == alone
    tight = engine(overlap=overlap, n_blocks=30)
    assert answers(tight, REQUESTS) == alone
    assert tight.stats().n_preemptions > 0
    for i, ids in alone.items():
        said = bytes(x for x in ids if x != EOS).decode("latin-1")
        if i % 4 == 0:
            assert re.match(r"(?s).{0,8}</think>[ \n\r\t]*(yes|no)$", said), said
        if i % 4 == 3:
            assert said.startswith(END)
    for n in (3, 15):
        for one in REQUESTS[:4]:
            emitted = alone[one.id][:n]
            if EOS in emitted:
                continue
            again = EngineRequest(one.id, one.prompt, one.params, emitted=emitted, is_resumed=True)
            assert (*emitted, *answers(engine(overlap=overlap), [again])[one.id]) == alone[one.id]


def test_a_mask_of_one_token() -> None:
    masks = GrammarMasks(byte_tokens)
    masks.check(limit().text())
    masks.open(0, limit().text(), tuple(b"abc"))
    bits = np.zeros(mask_words(VOCAB), np.uint32)
    masks.fill(0, (), bits)
    assert all(allows(bits, token) for token in range(VOCAB))
    bits[:] = 0
    masks.fill(0, tuple(b"de</th"), bits)
    assert [token for token in range(VOCAB) if allows(bits, token)] == [ord("i")]
    bits[:] = 0
    masks.fill(0, tuple(b"de</think>"), bits)
    assert allows(bits, ord("q"))
    assert FREE.text == ""


@overlaps
@pytest.mark.parametrize("i", range(2))
def test_reasoning_is_ended_while_it_goes_on(overlap: bool, i: int) -> None:
    """The answer is the one of who had said so before, wherever it is asked for."""
    reading = Reading(reasoning=Reasoning("<think>", END), is_open=True)
    grammar = (FREE, thinking_first(reading, STRUCTURE))[i]
    open_end = Limited(limit(budget=None).thinking, grammar.text).text()
    params = TokenParams(seed=3, max_tokens=60, stop_ids=(EOS,), constraint=open_end)
    others = [request(n) for n in range(4, 8)]
    for n_steps in (0, 3, 6):
        made = engine(overlap=overlap)
        made.submit([EngineRequest(99, tuple(range(20)), params), *others])
        said: list[int] = []
        closed: int | None = None
        for step in range(200):
            if step == n_steps:
                made.end_thinking(99)
            if not made.has_work:
                break
            for event in made.step().events:
                if event.id == 99:
                    assert event.error is None
                    said += event.tokens
                    closed = closed if event.closes_at is None else event.closes_at
        made.close()
        assert closed is not None and closed <= len(said)
        before = closed_at(open_end, closed)
        fixed = TokenParams(seed=3, max_tokens=60, stop_ids=(EOS,), constraint=before)
        alone = answers(engine(), [EngineRequest(99, tuple(range(20)), fixed)])[99]
        assert tuple(x for x in said if x != EOS) == tuple(x for x in alone if x != EOS)
        text = bytes(x for x in said if x != EOS).decode("latin-1")
        assert closed <= text.index(END) <= closed + 3
        for n in (closed, closed + 2, closed + 9):
            if EOS in alone[:n]:
                break
            log = open_log(
                EngineRequest(99, tuple(range(20)), params), key_root="k", numerics_id="n"
            )
            log.record(TokenEvent(99, tokens=alone[:n]))
            log.record(TokenEvent(99, closes_at=closed))
            again = replay(log, key_root="k", numerics_id="n")
            assert (*alone[:n], *answers(engine(overlap=overlap), [again])[99]) == alone
