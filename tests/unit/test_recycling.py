"""Drafts from what the target found likely behind tokens before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.config.options import EngineOptions
from kvasir.config.speculation import parse_speculation
from kvasir.core.errors import ConfigError
from kvasir.core.request import Context
from kvasir.speculate.base import Draft
from kvasir.speculate.recycling import N_OVERHEAD, CandidateTables, Recycling
from tests.unit.test_draft_control import Asked

ONE, OTHER = Context(salt="one"), Context(salt="other")


def taught(known: Asked, n_most: int = 1000) -> Recycling:
    made = Recycling(n_most)
    made.saw(known, (2, 5, 6), (), ((5, 6), (6, 7), (5,)))
    return made


def test_a_tree_follows_the_table_from_the_newest_token_on() -> None:
    known = Asked(0, tokens=(1, 2))
    (draft,) = taught(known).propose([known], 1)
    assert draft == Draft((5, 6, 6), (-1, 0, -1), evidence=draft.evidence)
    (draft,) = taught(known).propose([known], 2)
    assert draft.tokens == (5, 6, 6, 5, 7, 5)
    assert draft.parents == (-1, 0, -1, 1, 0, 2), "the likeliest first"
    assert draft.evidence > 0


def test_who_was_not_seen_has_no_draft() -> None:
    known = Asked(0, tokens=(1, 9))
    assert taught(known).propose([known], 4) == [Draft()]


def test_the_newest_logits_of_a_token_count() -> None:
    known = Asked(0, tokens=(1, 2))
    made = taught(known)
    made.saw(known, (2,), (), ((8,),))
    assert made.propose([known], 1)[0].tokens == (8,)
    made.saw(known, (2,), (), ((),))
    assert made.propose([known], 1)[0].tokens == (8,), "what is no distribution says nothing"


def test_no_context_sees_what_another_one_was_drawn() -> None:
    one, other = Asked(0, context=ONE), Asked(1, context=OTHER)
    made = taught(one)
    before = made.propose([one], 4)
    assert made.propose([other], 4) == [Draft()]
    made.saw(other, (2, 9), (), ((9,), (2,)))
    assert made.propose([one], 4) == before


def test_what_is_kept_is_bounded_and_the_oldest_goes() -> None:
    tables = CandidateTables(200)
    for token in range(5000):
        tables.put(ONE, token, (token + 1,))
        assert tables.n_tokens <= 200
    assert list(tables.get(ONE, 4999)) == [5000] and not tables.get(ONE, 4000)
    for i in range(10_000):
        context = Context(salt=str(i))
        tables.put(context, 1, (i,))
        assert tables.n_tokens <= 200
    assert list(tables.get(context, 1)) == [i] and not tables.get(ONE, 4999)
    assert tables.n_tokens >= 200 - 2 * N_OVERHEAD


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('"prompt_lookup_min": 2', "recycling has no prompt_lookup_min"),
        ('"draft_width": 2', "recycling has no draft_width"),
        ('"stored_tokens": 0', "0 is none"),
        ('"stored_tokens": 10', "1000 at least"),
        ('"num_speculative_tokens": 64', "from 1 to 63"),
    ],
)
def test_options_that_say_nothing_are_refused(more: str, message: str) -> None:
    text = '{"method": "recycling", ' + more + "}"
    with pytest.raises(ConfigError, match=message):
        parse_speculation(EngineOptions(speculative_config=text))


def test_it_goes_together_with_a_program() -> None:
    text = '[{"method": "recycling"}, {"model": "small.gguf"}]'
    asked = parse_speculation(EngineOptions(speculative_config=text))
    assert asked is not None and asked.n_candidates == 8 and asked.name == "draft_model+recycling"
    alone = parse_speculation(EngineOptions(speculative_config='{"method": "recycling"}'))
    assert alone is not None and not alone.has_program and alone.n_stored == 100_000


def test_a_request_without_drafts_teaches_others() -> None:
    known = Asked(0, tokens=(1, 2))
    made = taught(known)
    made.ended(known)
    assert made.propose([replace(known, id=1)], 1)[0].tokens
