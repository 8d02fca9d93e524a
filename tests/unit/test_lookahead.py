"""Lookahead decoding: guesses that the target mends, and n-grams of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.config.options import EngineOptions
from kvasir.config.speculation import parse_speculation
from kvasir.core.errors import ConfigError
from kvasir.speculate.base import Draft
from kvasir.speculate.controller import Controller
from kvasir.speculate.lookahead import MAX_KEYS, WARM_UP, Lookahead
from tests.unit.test_draft_control import Asked, flat, linear, trained


def target(token: int) -> int:
    """What follows ``token``."""
    return (5 * token + 3) % 97


def step(made: Lookahead, known: Asked, n_rows: int = 99) -> Asked:
    """Of a target that sees one token back: the request with what it draws."""
    (draft,) = made.propose([known], n_rows)
    tokens = (known.tokens[-1], *draft.tokens)
    parents = (-1, *(x + 1 for x in draft.parents)) if draft.parents else ()
    made.saw(known, tokens, parents, [(target(token),) for token in tokens])
    children = {
        (p, t): i for i, (p, t) in enumerate(zip(_parents(draft), draft.tokens, strict=True))
    }
    drawn, node = [target(known.tokens[-1])], -1
    while (node := children.get((node, drawn[-1]), -2)) != -2:
        drawn.append(target(drawn[-1]))
    return replace(known, tokens=(*known.tokens, *drawn))


def _parents(draft: Draft) -> tuple[int, ...]:
    return draft.parents or tuple(range(-1, len(draft.tokens) - 1))


def test_the_window_is_a_chain_of_old_guesses_with_younger_ones_behind_them() -> None:
    known = Asked(0, tokens=(1, 2, 3, 4, 5, 6))
    (draft,) = Lookahead(3, 3, 2).propose([known], 99)
    assert draft.tokens == (1, 4, 2, 5, 3, 6)
    assert draft.parents == (-1, 0, 0, 2, 2, 4)
    assert draft.is_whole and draft.evidence


def test_what_the_target_draws_behind_guesses_is_guessed_next_and_makes_n_grams() -> None:
    made, known = Lookahead(2, 3, 2), Asked(0, tokens=(1, 2, 3, 4))
    step(made, known)
    (draft,) = made.propose([replace(known, tokens=(1,))], 99)
    mended = target(3), target(4)
    assert draft.tokens == (3, mended[0], 4, mended[1]), "of the first token 1 none is the newest"
    assert draft.parents == (-1, 0, 0, 2)
    (draft,) = made.propose([replace(known, tokens=(9, 1))], 99)
    assert draft.tokens[:2] == (3, mended[0]), "1, 3 and what follows is an n-gram"


def test_steps_give_several_tokens_in_the_end() -> None:
    made, known = Lookahead(4, 3, 3), Asked(0, tokens=(1, 2))
    n_steps = 0
    while len(known.tokens) < 400:
        known, n_steps = step(made, known), n_steps + 1
        (draft,) = made.propose([known], 99)
        assert len(draft.tokens) <= (4 + 3) * 2
    assert n_steps < 0.75 * 400
    assert known.tokens[3:] == tuple(target(token) for token in known.tokens[2:-1])


def test_a_window_that_is_not_whole_is_no_iteration() -> None:
    made, known = Lookahead(3, 3, 2), Asked(0, tokens=(1, 2, 3, 4, 5, 6))
    before = made.propose([known], 99)
    step(made, known, n_rows=5)
    made.saw(known, (6, 1), (), ((2,), (3,)))
    made.saw(known, (6, *before[0].tokens), (-1, *(x + 1 for x in before[0].parents)), [()] * 7)
    assert made.propose([known], 99) == before


def test_nothing_stays_of_a_request_and_while_it_runs_it_is_bounded() -> None:
    made, known = Lookahead(2, 2, 1), Asked(0, tokens=(1, 2))
    for i in range(2 * MAX_KEYS):
        (draft,) = made.propose([known], 99)
        tokens, parents = (known.tokens[-1], *draft.tokens), (-1, *(x + 1 for x in _parents(draft)))
        made.saw(known, tokens, parents, [(100 + i,)] * len(tokens))
    trail = made._trails[0]
    assert len(trail._pool) <= MAX_KEYS
    other = Asked(1, tokens=(1, 2))
    assert made.propose([other], 99) == Lookahead(2, 2, 1).propose([other], 99)
    for one in (known, other):
        made.ended(one)
    assert not made.n_requests


def test_a_draft_that_is_whole_is_computed_whole_or_not_at_all() -> None:
    known = Asked(0, tokens=(1, 2, 3, 4))
    (draft,) = Lookahead(2, 3, 2).propose([known], 99)
    assert trained(flat).chosen([known], [draft], 0, 0.0) == [draft]
    assert trained(linear).chosen([known], [draft], 0, 0.0) == [draft.head(0)]
    made = Controller()
    assert made.grown(known, draft, 3) == draft.head(3)
    assert made.chosen([known], [draft.head(0)], 0, 0.0) == [draft.head(0)]


def test_drafts_that_only_collect_n_grams_do_not_count_against_it_at_first() -> None:
    made, controller = Lookahead(2, 3, 2), trained(flat)
    known = Asked(0, tokens=(1, 2, 3, 4, 5, 6, 9))
    taught = []
    for i in range(WARM_UP + 4):
        (draft,) = made.propose([known], 99)
        assert controller.chosen([known], [draft], 0, 0.0) == [draft] or draft.teaches
        controller.drew(known, draft, ())
        taught.append(draft.teaches)
        tokens, parents = (9, *draft.tokens), (-1, *(x + 1 for x in _parents(draft)))
        made.saw(known, tokens, parents, [(100 + 5 * i + j,) for j in range(len(tokens))])
    assert taught == [False] * WARM_UP + [True] * 4
    (draft,) = made.propose([replace(known, tokens=(1, 100))], 99)
    assert draft.teaches


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('"max_ngram_size": 1', "is 1: needs a number from 2 to 63"),
        ('"max_window_size": 40', "computes 84 tokens"),
        ('"num_speculative_tokens": 7', "computes 8 tokens, .*: at most 7 are drafted"),
        ('"stored_tokens": 2000', "lookahead has no stored_tokens"),
        ('"draft_width": 2', "lookahead has no draft_width"),
    ],
)
def test_options_that_do_not_fit_are_refused(more: str, message: str) -> None:
    text = '{"method": "lookahead", ' + more + "}"
    with pytest.raises(ConfigError, match=message):
        parse_speculation(EngineOptions(speculative_config=text))


def test_its_sizes_are_those_of_the_options() -> None:
    text = '{"method": "lookahead", "max_window_size": 4, "max_ngram_size": 4}'
    asked = parse_speculation(EngineOptions(speculative_config=text))
    assert asked is not None and (asked.n_tokens, asked.window) == (18, (4, 4, 2))
    assert asked.n_candidates == 1 and not asked.has_program
