"""The fake executor sees what attention would see, and refuses plans that break their promises."""

from __future__ import annotations

import time

import pytest
from msgspec import structs

from kvasir.core.drawn import Drawn
from kvasir.core.errors import KvasirError
from kvasir.core.groups import Tables
from kvasir.core.params import TokenParams
from kvasir.core.plan import Move, Row, RowOutput, SlotOpen
from kvasir.core.sizes import EngineSizes
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.rows import logit_rows
from tests.planned import Placed, placed, step_plan

SIZES = EngineSizes(50, 64, 4, 32, 8, 16)
PARAMS = TokenParams(seed=1, max_tokens=9, temperature=0.0)
OPEN = SlotOpen(0, PARAMS, (1, 2, 3))
PROMPT = placed(0, 0, (1, 2, 3), ((5,),))


def but(tables: Tables = PROMPT.tables, **changes: object) -> Placed:
    """The prompt with ``changes``."""
    return Placed(structs.replace(PROMPT.row, **changes), tables)


def run(executor: FakeExecutor, *rows: Placed, **parts: object) -> tuple[RowOutput, ...]:
    return executor.run(step_plan(0, rows, **parts)).outputs


def after_prompt() -> FakeExecutor:
    executor = FakeExecutor(SIZES, is_checked=False)
    run(executor, PROMPT, opens=(OPEN,))
    return executor


def test_logits_depend_on_every_visible_token_and_its_place() -> None:
    def logits(*tokens: int) -> int:
        opened = SlotOpen(0, PARAMS, tokens)
        return run(FakeExecutor(SIZES), placed(0, 0, tokens, PROMPT.tables), opens=(opened,))[
            0
        ].logits_hash

    hashes = {logits(1, 2, 3), logits(1, 3, 2), logits(4, 2, 3), logits(2, 3), logits(1, 2, 4)}
    assert len(hashes) == 5
    assert logits(1, 2, 3) == logits(1, 2, 3)


def test_the_past_is_read_through_the_block_table() -> None:
    step = placed(0, 3, (9,), ((5,),))
    right = run(after_prompt(), step)
    assert run(after_prompt(), step) == right
    assert run(after_prompt(), placed(0, 3, (9,), ((6,),))) != right


def test_a_reference_is_what_the_previous_plan_drew() -> None:
    executor, named = after_prompt(), after_prompt()
    drawn = run(executor, PROMPT, opens=(OPEN,))[0].token
    run(named, PROMPT, opens=(OPEN,))
    referred = run(executor, placed(0, 3, (-1,), ((5,),), out_index=1))
    assert referred == run(named, placed(0, 3, (drawn,), ((5,),), out_index=1))


def test_a_branch_of_a_tree_gives_the_logits_of_its_chain_and_moves_into_it() -> None:
    tree = placed(0, 3, (9, 7, 8, 6), ((5,),), n_logits=4, parents=(-1, 0, 0, 2))
    branching, chain = after_prompt(), after_prompt()
    of_tree = run(branching, tree)
    of_chain = run(chain, placed(0, 3, (9, 8, 6), ((5,),), n_logits=3))
    assert (of_tree[0], of_tree[2], of_tree[3]) == of_chain
    following = placed(0, 6, (2,), ((5,),))
    moved = run(branching, following, moves=(Move(0, 5, 4), Move(0, 6, 5)))
    assert moved == run(chain, following)


def test_chosen_rows_are_not_finite() -> None:
    executor = FakeExecutor(SIZES, nonfinite={1: 1})
    assert run(executor, PROMPT, opens=(OPEN,))[0].token >= 0
    assert run(executor, placed(0, 3, (4,), ((5,),), out_index=1))[0].token == -1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (but(tokens=()), "row of 0 at 0"),
        (but(tokens=(1, 2, 50)), "outside 50 words"),
        (but(tokens=(1, 2, -1)), "0 references"),
        (but(tables=((),)), "3 tokens in blocks"),
        (but(tables=((0, 1, 2, 3, 4),)), "no place for TableChange"),
        (but(tables=((8,),)), "3 tokens in blocks"),
        (but(start=62, tables=((0, 1, 2, 3),)), "storage up to 65"),
        (but(slot=1), "rows of slots"),
        (but(n_logits=4), "4 logit rows"),
        (but(targets=(1, 2)), "2 targets"),
        (but(n_logits=3, parents=(-1, 1, 0)), "are not a tree"),
        (but(tokens=tuple(range(40)), tables=((0, 1, 2),)), "40 tokens in one step"),
    ],
)
def test_a_broken_promise_is_named(row: Placed, message: str) -> None:
    with pytest.raises(KvasirError, match=message):
        run(FakeExecutor(SIZES), row, opens=(OPEN,))


def test_two_owners_of_one_block_are_refused() -> None:
    other = SlotOpen(1, PARAMS, (1, 2, 3))
    with pytest.raises(KvasirError, match="two rows write block 5"):
        run(FakeExecutor(SIZES), PROMPT, but(slot=1), opens=(OPEN, other))
    reader = placed(1, 16, (1,), ((5, 6),))
    with pytest.raises(KvasirError, match="block 5 has two owners"):
        run(FakeExecutor(SIZES), PROMPT, reader, opens=(OPEN, other))


def test_paths_hold_what_the_sampler_was_not_told() -> None:
    plain = logit_rows(Row(0, 3, (9, 7, 8), n_logits=3, out_index=4))
    assert [(row.out_index, row.path) for row in plain] == [(4, ()), (5, (7,)), (6, (7, 8))]
    tree = logit_rows(
        placed(0, 3, (9, 7, 8), ((5,),), n_logits=3, out_index=4, parents=(-1, 0, 0)).row
    )
    assert [(row.out_index, row.path) for row in tree] == [(4, ()), (5, (7,)), (5, (8,))]
    referring = logit_rows(Row(0, 3, (-2,), out_index=4))
    assert referring[0].path == (-2,)
    assert Drawn((11, 22)).ids(referring[0].path) == (22,)
    scored = logit_rows(
        placed(0, 0, (9, 7), ((5,),), n_logits=2, out_index=-1, targets=(7, -1)).row
    )
    assert [(row.out_index, row.path, row.target) for row in scored] == [(-1, (), 7), (0, (), -1)]


def test_a_thousand_steps_take_milliseconds() -> None:
    executor = after_prompt()
    began = time.process_time()
    for step in range(1000):
        run(executor, placed(0, 3 + step % 60, (9,), ((5, 6, 7, 4)[: 1 + (3 + step % 60) // 16],)))
    assert time.process_time() - began < 2.0
