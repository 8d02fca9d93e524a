"""Trees of drafts: grown by how likely each token is drawn, cut where it does not pay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.core.plan import MAX_DRAFTS, reference, referred, sibling
from kvasir.speculate.base import Draft
from kvasir.speculate.controller import Controller
from kvasir.speculate.executor import ExecutorProposer
from kvasir.speculate.survival import Survival
from tests.unit.test_draft_control import Asked, flat, linear, trained

TREE = Draft((10, 11, 12, 20, 21, 22, 30, 31, 32), (-1, -1, -1, 0, 0, 0, 3, 3, 3), evidence=4)
"""Three tokens in each of three places."""


def learned(share: float, sibling_share: float) -> Survival:
    """Of a request whose best tokens are drawn so often, and else their next best so often."""
    made = Survival()
    for step in range(400):
        is_first = step * 37 % 100 < 100 * share
        is_second = step * 5 % 7 < 7 * sibling_share
        path = [0] if is_first else [1] if is_second else []
        made.drew_tree(0, TREE.head(2), path)
    return made


def test_a_draft_knows_its_form() -> None:
    assert TREE.ranks == (0, 1, 2) * 3
    assert TREE.depth == 3
    assert TREE.head(1).parents == (), "a chain"
    assert TREE.ordered((0, 3, 1)) == Draft((10, 20, 11), (-1, 0, -1), evidence=4)
    assert TREE.ordered((0, 3, 6)) == Draft((10, 20, 30), evidence=4), "of no siblings"


def test_each_beginning_of_a_grown_tree_is_the_best_of_its_size() -> None:
    for share, sibling_share in ((0.9, 0.1), (0.4, 0.8)):
        survival = learned(share, sibling_share)
        made = Controller()
        made._survival = survival
        best = sorted(survival.nodes(0, TREE), reverse=True)
        for n in range(1, 10):
            grown = made.grown(Asked(0), TREE, n)
            assert len(grown.tokens) == n
            assert sum(survival.nodes(0, grown)) == pytest.approx(sum(best[:n]))
    assert made.grown(Asked(0), TREE, 2).tokens == (10, 11), "wide, where the best is seldom drawn"
    made._survival = learned(0.9, 0.1)
    assert made.grown(Asked(0), TREE, 3) == Draft((10, 20, 30), evidence=4), "deep, where it is"


def test_no_tree_is_expected_to_bring_less_than_a_chain_of_its_size() -> None:
    for share in (0.2, 0.5, 0.8, 0.95):
        survival = learned(share, 0.3)
        made = Controller()
        made._survival = survival
        for n in (1, 2, 3):
            chain = survival.nodes(0, Draft((1, 2, 3), evidence=4).head(n))
            assert sum(survival.nodes(0, made.grown(Asked(0), TREE, n))) >= sum(chain) - 1e-9


def test_what_is_learned_of_a_rank_is_of_those_whose_betters_were_not_drawn() -> None:
    survival = learned(0.5, 1.0)
    first, second = survival.nodes(0, TREE.head(2))
    assert first == pytest.approx(0.5, abs=0.15)
    assert second == pytest.approx((1 - first) * 0.95, abs=0.1)
    other = Survival()
    for _ in range(100):
        other.drew_tree(0, TREE, [0, 4])
    nodes = other.nodes(0, TREE)
    assert nodes[1] <= nodes[0] and nodes[3] <= nodes[0], "in the order of the draft"


def test_as_much_of_a_tree_is_computed_as_pays() -> None:
    assert len(trained(flat).chosen([Asked(0)], [TREE], 0, 0.0)[0].tokens) == 9
    assert trained(linear).chosen([Asked(0)], [TREE], 0, 0.0) == [TREE.head(0)]


def test_a_tree_is_made_of_what_the_executor_drafted() -> None:
    known = Asked(0, drafted=(10, 20), siblings=((11, -1), (12, 22)))
    proposer = ExecutorProposer(evidence=4, width=3)
    (draft,) = proposer.propose([known], 4)
    expected = Draft((10, 11, 12, 20, 22), (-1, -1, -1, 0, 0), n_asked=4, evidence=4)
    assert draft == expected
    open_ones = replace(known, drafted=(reference(5, 1), reference(5, 2)), siblings=())
    (draft,) = proposer.propose([open_ones], 4)
    assert len(draft.tokens) == 6 and draft.parents == (-1, -1, -1, 0, 0, 0)
    assert draft.tokens[1] == sibling(reference(5, 1), 1)
    assert referred(draft.tokens[2]) == (5, 1 + 2 * MAX_DRAFTS)


def test_trees_that_turn_bad_are_off_within_32_steps() -> None:
    made, asked = trained(lambda n: 0.01 * (1 + 0.07 * (n - 1))), Asked(0)
    for _ in range(50):
        (chosen,) = made.chosen([asked], [made.grown(asked, TREE, 6)], 0, 0.0)
        assert chosen.tokens
        made.drew(asked, chosen, [0])
    n_steps = 0
    while (chosen := made.chosen([asked], [made.grown(asked, TREE, 6)], 0, 0.0)[0]).tokens:
        made.drew(asked, chosen, ())
        n_steps += 1
    assert n_steps <= 32
