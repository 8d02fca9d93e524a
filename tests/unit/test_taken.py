"""What rows do to the states of their slots, where they may draft."""

from __future__ import annotations

from kvasir.core.groups import STATE_WINDOW, KVGroup
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, RowOutput, SlotOpen, StepPlan
from kvasir.core.sizes import EngineSizes
from kvasir.exec.taken import StateSlots, StateStep


def slots(n_drafts: int) -> StateSlots:
    return StateSlots(
        EngineSizes(99, 64, 2, 64, 8, 16, (KVGroup(8, STATE_WINDOW, 64, drafts=n_drafts),))
    )


def plan_of(*rows: Row, opens: tuple[SlotOpen, ...] = ()) -> StepPlan:
    return StepPlan(0, rows, opens)


def drew(*tokens: int) -> tuple[RowOutput, ...]:
    return tuple(map(RowOutput, tokens))


OPEN = SlotOpen(0, TokenParams(seed=0, max_tokens=9), (1,))


def test_the_next_row_takes_in_what_was_right() -> None:
    made = slots(4)
    assert made.begin(plan_of(Row(0, 16, (1, 2, 3)), opens=(OPEN,))) == [StateStep(16, (), 3)]
    chain = plan_of(Row(0, 19, (7, 8, 9, 10), n_logits=4))
    assert made.begin(chain) == [StateStep(19, (), 1)]
    made.drew(chain, drew(8, 9, 50, 0))
    after = plan_of(Row(0, 22, (50,)))
    assert made.begin(after) == [StateStep(20, (1, 2), 1)]
    made.drew(after, drew(3))
    assert made.begin(plan_of(Row(0, 23, (3,)))) == [StateStep(23, (), 1)]


def test_of_a_tree_it_takes_the_path() -> None:
    made = slots(4)
    made.begin(plan_of(Row(0, 0, (1,)), opens=(OPEN,)))
    tree = plan_of(Row(0, 1, (5, 6, 7, 8, 9), n_logits=5, parents=(-1, 0, 0, 2, 3)))
    assert made.begin(tree) == [StateStep(1, (), 1)]
    made.drew(tree, drew(7, 0, 8, 60, 0))
    assert made.begin(plan_of(Row(0, 4, (60,)))) == [StateStep(2, (2, 3), 1)]


def test_a_slot_that_is_opened_again_has_nothing_to_take() -> None:
    made = slots(4)
    made.begin(plan_of(Row(0, 0, (1,)), opens=(OPEN,)))
    chain = plan_of(Row(0, 1, (5, 6), n_logits=2))
    made.begin(chain)
    made.drew(chain, drew(6, 7))
    again = plan_of(Row(0, 32, (1, 2)), opens=(OPEN,))
    assert made.begin(again) == [StateStep(32, (), 2)]


def test_where_nobody_drafts_all_tokens_of_a_row_are_certain() -> None:
    """A constraint forces them: each is drawn, and none is rejected."""
    made = slots(0)
    forced = plan_of(Row(0, 0, (5, 6, 7), n_logits=3), opens=(OPEN,))
    assert made.begin(forced) == [StateStep(0, (), 3)]
    made.drew(forced, drew(6, 7, 8))
    assert made.begin(plan_of(Row(0, 3, (8,)))) == [StateStep(3, (), 1)]
