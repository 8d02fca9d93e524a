"""However requests are computed, their answers are the same; here on the fake executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from kvasir.core.plan import StepPlan, TableChange
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.loop import EngineFault
from kvasir.exec.base import BlockStore, Handle
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.tables import SlotTables
from tests.draft_variants import SEEING_CACHED, SEEING_VARIANTS
from tests.drafting import Drafts
from tests.exactness import (
    CACHE_VARIANTS,
    VARIANTS,
    Outcome,
    Sizes,
    Variant,
    baseline,
    run,
)
from tests.fork_variants import FORK_VARIANTS
from tests.forms import IS_LONG
from tests.request_sets import make_requests, make_sharing_requests, next_turns, wanting
from tests.sharing_variants import SHARING_VARIANTS

Damage = Callable[[StepPlan, SlotTables], StepPlan]

SIZES = Sizes(vocab_size=97)
WINDOWED = (
    replace(SIZES, windows=(24,)),
    replace(SIZES, windows=(1, 50)),
    replace(SIZES, windows=(33,), has_full=False),
)
REQUESTS = make_requests(40 if IS_LONG else 28, SIZES.vocab_size, seed=1)
SHARING = make_sharing_requests(40 if IS_LONG else 10, SIZES.vocab_size, seed=2, max_tokens=70)


@pytest.fixture(scope="module")
def expected() -> Outcome:
    return baseline(FakeExecutor, REQUESTS, SIZES)


@pytest.mark.parametrize(
    "variant", (*VARIANTS, *SHARING_VARIANTS, *SEEING_VARIANTS), ids=lambda variant: variant.name
)
def test_answers_do_not_depend_on_how_they_are_computed(
    variant: Variant, expected: Outcome
) -> None:
    outcome = run(FakeExecutor, REQUESTS, SIZES, variant, expected.answers)
    assert outcome.answers.keys() == expected.answers.keys()
    for request in REQUESTS:
        assert outcome.answers[request.id] == expected.answers[request.id], request.params
    stats = outcome.stats
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    if variant.n_spare_blocks is not None and variant.sharing.kv_policy == "paged":
        assert outcome.stats.n_preemptions > 0


@pytest.fixture(scope="module")
def expected_of_sharing() -> Outcome:
    first = baseline(FakeExecutor, SHARING, SIZES)
    second = baseline(FakeExecutor, second_turns(first), SIZES)
    return Outcome(first.answers | second.answers, second.stats)


def second_turns(
    known: Outcome, requests: Sequence[EngineRequest] = SHARING
) -> list[EngineRequest]:
    outputs = {i: answer.tokens for i, answer in known.answers.items()}
    return next_turns(requests, outputs, max_prompt=140)


@pytest.mark.parametrize(
    "variant", (*CACHE_VARIANTS, *SEEING_CACHED, *FORK_VARIANTS), ids=lambda variant: variant.name
)
def test_answers_do_not_depend_on_what_is_cached(
    variant: Variant, expected_of_sharing: Outcome
) -> None:
    expected = expected_of_sharing.answers
    requests = SHARING + second_turns(expected_of_sharing)
    outcome = run(FakeExecutor, requests, SIZES, variant, expected)
    for request in requests:
        assert outcome.answers[request.id] == expected[request.id], request.params
    stats = outcome.stats
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    is_tight = variant.forks and not variant.cache and variant.n_spare_blocks is not None
    if not is_tight:  # held blocks yield there before anybody forks from them
        assert stats.prefix_queries > stats.prefix_hits > 20
    if variant.n_spare_blocks is not None and variant.n_seqs > 2:
        assert stats.n_preemptions > 0


@pytest.fixture(scope="module", params=WINDOWED, ids=lambda sizes: f"windows of {sizes.windows}")
def windowed(request: pytest.FixtureRequest) -> tuple[Sizes, Outcome, Outcome]:
    """Sizes, the answers of requests alone, and those of ``SHARING`` and its second turns."""
    sizes: Sizes = request.param
    first = baseline(FakeExecutor, SHARING[:8], sizes)
    second = baseline(FakeExecutor, second_turns(first, SHARING[:8]), sizes)
    turns = Outcome(first.answers | second.answers, second.stats)
    return sizes, baseline(FakeExecutor, REQUESTS[:8], sizes), turns


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "variant", (*VARIANTS, *CACHE_VARIANTS, *FORK_VARIANTS), ids=lambda v: v.name
)
def test_windows_change_no_answer(
    variant: Variant, windowed: tuple[Sizes, Outcome, Outcome]
) -> None:
    sizes, alone, turns = windowed
    expected = (turns if variant.cache else alone).answers
    requests = REQUESTS[:8]
    if variant.cache:
        requests = SHARING[:8] + second_turns(turns, SHARING[:8])
    outcome = run(FakeExecutor, requests, sizes, variant, expected)
    for request in requests:
        assert outcome.answers[request.id] == expected[request.id], request.params
    stats = outcome.stats
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    assert not variant.cache or not variant.n_spare_blocks or stats.prefix_hits > 0
    if variant.n_spare_blocks is None:
        assert stats.n_preemptions == 0


def test_the_requests_use_every_feature(expected: Outcome) -> None:
    answers = expected.answers.values()
    assert {answer.finish for answer in answers} == {"stop", "length"}
    assert any(answer.prompt_logprobs and not answer.tokens for answer in answers)
    assert any(item.top for answer in answers for item in answer.logprobs)
    assert all(all(answer.hashes) for answer in answers)
    assert sum(len(answer.tokens) for answer in answers) > 300


class _Broken:
    """An executor that receives damaged plans."""

    def __init__(self, damage: Damage, *, is_checked: bool = False) -> None:
        self._damage = damage
        self._is_checked = is_checked

    def __call__(self, sizes: EngineSizes) -> _Broken:
        self._inner = FakeExecutor(sizes, is_checked=self._is_checked)
        self._tables = SlotTables(sizes)
        return self

    @property
    def sizes(self) -> EngineSizes:
        return self._inner.sizes

    def attach(self, store: BlockStore) -> None:
        self._inner.attach(store)

    def start(self, plan: StepPlan) -> Handle:
        self._tables.apply(plan)
        return self._inner.start(self._damage(plan, self._tables))

    def read_block(self, group: int, block: int) -> bytes:
        return self._inner.read_block(group, block)

    def close(self) -> None:
        self._inner.close()


def _without_moves(plan: StepPlan, tables: SlotTables) -> StepPlan:
    return structs.replace(plan, moves=())


def _without_commits(plan: StepPlan, tables: SlotTables) -> StepPlan:
    return structs.replace(plan, commits=())


def _without_copies(plan: StepPlan, tables: SlotTables) -> StepPlan:
    return structs.replace(plan, copies=())


def _with_short_copies(plan: StepPlan, tables: SlotTables) -> StepPlan:
    copies = tuple(structs.replace(c, n_entries=max(1, c.n_entries - 1)) for c in plan.copies)
    return structs.replace(plan, copies=copies)


def _with_rotated_blocks(plan: StepPlan, tables: SlotTables) -> StepPlan:
    """Full blocks are read in another order: only what was written elsewhere shows it."""
    rotated = tuple(
        TableChange(row.slot, group, 0, blocks[1:] + blocks[:1])
        for row in plan.rows
        if row.start % 32 == 20
        for group, blocks in enumerate(tables.of(row.slot, row.start + len(row.tokens)))
    )
    return structs.replace(plan, tables=plan.tables + rotated)


def _with_later_index(plan: StepPlan, tables: SlotTables) -> StepPlan:
    rows = tuple(
        structs.replace(row, out_index=row.out_index + (row.start > 30)) for row in plan.rows
    )
    return structs.replace(plan, rows=rows)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_without_moves, "tree drafts"),
        (_without_commits, "overlapped"),
        (_with_rotated_blocks, "alone"),
        (_with_later_index, "pairs"),
    ],
)
def test_the_harness_notices_a_damaged_plan(damage: Damage, name: str, expected: Outcome) -> None:
    variant = next(variant for variant in VARIANTS if variant.name == name)
    outcome = run(_Broken(damage), REQUESTS, SIZES, variant, expected.answers)
    assert outcome.answers != expected.answers


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_without_moves, "tree drafts"),
        (_with_rotated_blocks, "alone"),
        (_without_copies, "one after the other"),
        (_with_short_copies, "one after the other"),
    ],
)
def test_the_checker_refuses_a_damaged_plan(damage: Damage, name: str, expected: Outcome) -> None:
    variant = next(v for v in (*VARIANTS, *CACHE_VARIANTS) if v.name == name)
    requests = SHARING if variant.cache else REQUESTS
    with pytest.raises(EngineFault, match=r"invalid plan: slot \d+ reads entry"):
        run(_Broken(damage, is_checked=True), requests, SIZES, variant, expected.answers)


@pytest.mark.parametrize("damage", [_without_copies, _with_short_copies])
def test_the_harness_notices_damaged_copies(damage: Damage, expected_of_sharing: Outcome) -> None:
    outcome = run(_Broken(damage), SHARING, SIZES, CACHE_VARIANTS[0])
    assert any(outcome.answers[i] != expected_of_sharing.answers[i] for i in outcome.answers)


@pytest.mark.parametrize(
    "name",
    [f"{kind}, overlapped, preempted, staggered" for kind in ("tree drafts", "lookups")]
    + ["replayed, tree drafts"],
)
def test_no_answer_depends_on_what_its_request_says_of_drafts(name: str, expected: Outcome) -> None:
    """Some want none, some few, and some predict what they will be told, rightly in part."""
    variant = next(variant for variant in VARIANTS if variant.name == name)
    asked = wanting(REQUESTS, {i: x.tokens for i, x in expected.answers.items()})
    outcome = run(FakeExecutor, asked, SIZES, variant, expected.answers)
    assert outcome.answers == expected.answers
    assert outcome.stats.n_accepted > 30


def test_right_drafts_save_steps(expected: Outcome) -> None:
    plain = run(FakeExecutor, REQUESTS, SIZES, Variant("plain"))
    steps = {}
    for name in ("chain drafts", "tree drafts"):
        variant = next(variant for variant in VARIANTS if variant.name == name)
        steps[name] = run(FakeExecutor, REQUESTS, SIZES, variant, expected.answers).stats.step
    assert steps["chain drafts"] < 0.4 * plain.stats.step
    assert steps["tree drafts"] < 0.5 * plain.stats.step
    wrong = Variant("all wrong", drafts=Drafts(4, wrong_depths=frozenset({1})))
    assert run(FakeExecutor, REQUESTS, SIZES, wrong, expected.answers).answers == expected.answers
