"""A scheduler knows which tiles' rows an executor keeps, and rows are those of their tile: random
requests with images, of which some are cancelled, and room for few rows."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from kvasir.checkpoints.tower import read_tower
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.core.tiles import Media, media_at
from kvasir.exec.canvas import TileRows
from kvasir.exec.media import MediaRows, MediaSlots
from kvasir.ir.pieces import TowerPieces
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import NEUTRAL, CostModel, Costs
from kvasir.timing.towers import SLOW_FLOPS, TowerCosts
from kvasir.weights.source import open_model
from tests import tiny_llava
from tests.sizes import config_of

N_TOKENS, N_COLUMNS, N_PIECES, BUDGET = 6, 2, 4, 16
TILE_BYTES = N_TOKENS * N_COLUMNS * 4


class Dear(TowerPieces):
    """Each piece takes a second on a slow machine: one is done in a step."""

    def of_media(self, media: Media) -> list[float]:
        return [SLOW_FLOPS] * N_PIECES

    def n_bytes(self, media: Media) -> int:
        return TILE_BYTES


def tile(start: int, seed: int) -> Media:
    return media_at(start, N_TOKENS, bytes([seed]) * 6, 3)


def rows_of(media: Media) -> TileRows:
    for _ in range(N_PIECES):
        yield
    return np.full((N_TOKENS, N_COLUMNS), media.pixels[0], np.float32)


class Both:
    """A scheduler, and what an executor does with the towers of its plans."""

    def __init__(
        self, towers: TowerCosts, n_tiles: int, costs: Costs = NEUTRAL, target: float | None = None
    ) -> None:
        config = config_of(128, 4, BUDGET, 64, 4, enable_prefix_caching=False, itl_target=target)
        self.scheduler = Scheduler(config, costs=CostModel(costs, towers))
        self.scheduler._towers._cache.limit = limit = n_tiles * TILE_BYTES
        self.given = np.zeros((BUDGET, N_COLUMNS), np.float32)
        self.rows = MediaRows(rows_of, [self.given], np.zeros(BUDGET, np.int32), limit=limit)
        self._slots = MediaSlots()

    def add(self, number: int, *seeds: int) -> None:
        media = tuple([tile(3 + i * (N_TOKENS + 2), seed) for i, seed in enumerate(seeds)])
        prompt = tuple(range(1, media[-1].end + 2))
        self.scheduler.add(
            EngineRequest(number, prompt, TokenParams(seed=1, max_tokens=2), media=media)
        )

    def step(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.rows.write(plan)
            for run in self._slots.of(plan):
                assert (self.given[run.at : run.at + run.n] == run.media.pixels[0]).all()
            outputs = (RowOutput(7),) * plan.n_logits
            self.scheduler.commit(plan, StepResult(outputs))
        return plan


@pytest.fixture
def towers(tmp_path: Path) -> TowerCosts:
    source = open_model(tiny_llava.write(tiny_llava.llava_onevision(), tmp_path))
    return TowerCosts(Dear.of(build_tower(read_tower(source, 64))))


@pytest.mark.parametrize("n_tiles", [2, 3, 5])
def test_nothing_is_computed_that_was_not_foretold(towers: TowerCosts, n_tiles: int) -> None:
    both, rng = Both(towers, n_tiles), random.Random(n_tiles)
    for number in range(150):
        both.add(number, *[rng.randrange(1, 12) for _ in range(rng.randint(1, 3))])
    while both.scheduler.has_work:
        both.step()
        if both.scheduler.running and rng.random() < 0.03:
            both.scheduler.cancel(rng.choice(both.scheduler.running).id)
            both.scheduler.take_events()
    assert both.rows.n_unforeseen == 0 and both.rows.n_computed > 40


def test_what_was_begun_is_not_another_tile(towers: TowerCosts) -> None:
    both = Both(towers, 3)
    both.add(0, 1)
    plans = [both.step(), both.step()]
    both.scheduler.cancel(0)
    both.add(1, 2)
    plans += [both.step() for _ in range(5)]
    ends = [run.end for plan in plans if plan for run in plan.towers]
    assert ends == [1, 1, 2, 3, 4]


def test_who_forgets_begins_again(towers: TowerCosts) -> None:
    both = Both(towers, 3)
    both.add(0, 1)
    ends = []
    for i in range(8):
        if i == 3:
            both.scheduler.forget_media()
        plan = both.step()
        ends += [run.end for run in plan.towers] if plan else []
    assert ends == [1, 2, 1, 2, 3, 4]


def test_tiles_and_text_share_the_room_of_a_step(towers: TowerCosts) -> None:
    """Beside an answer: what is left of one tile, another one, and what stands before both."""
    towers.observe(SLOW_FLOPS, 6e-3)
    both = Both(towers, 5, Costs(step=5e-3, row=1e-5, token=1e-3, pair=1e-9, entry=1e-9), 0.03)
    answer = EngineRequest(0, (1, 2, 3), TokenParams(seed=1, max_tokens=60))
    both.scheduler.add(answer)
    both.step()
    for number in (1, 2, 3):
        both.add(number, number)
    n_towers = []
    while len(both.scheduler.running) > 1 or not n_towers:
        plan = both.step()
        assert plan is not None
        _, seconds, _, _ = both.scheduler.newest
        assert seconds <= 0.03
        n_towers.append(len(plan.towers))
    assert max(n_towers) == 2


def test_a_slot_is_opened_though_nothing_of_it_is_computed(
    towers: TowerCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no room for more rows of tiles, a request starts and waits; its row comes in a
    later plan, whose slot an executor has to know."""
    both = Both(towers, 1)
    both.add(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(both.scheduler._towers, "reach", lambda making, request, n_most: 0)
        plan = both.step()
    assert plan is not None and (plan.rows, plan.towers) == ((), ()) and len(plan.opens) == 1
    later = [plan for _ in range(8) if (plan := both.step()) is not None]
    assert any(plan.rows for plan in later) and not any(plan.opens for plan in later)
