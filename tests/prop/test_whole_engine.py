"""Everything at once: disk, holds, forks, beams, windows, salts, classes, preemption, drafts,
cancels, resets, deadlines and restarts, in both loops. ``make soak`` runs many more operations."""

from __future__ import annotations

import pytest

from kvasir.engine.loop import EngineFault
from kvasir.kv.cache import Hit, PrefixCache
from kvasir.kv.table import BlockTable
from tests.engine_machine import run
from tests.forms import IS_WIDE

N_OPERATIONS = 600
TELLING = 1000
"""A seed whose run comes to load a block that the same plan copies from."""
LOADING = 103
"""A seed whose run comes to load what memory has past a gap in a window."""


@pytest.mark.parametrize("seed", (0, 1, LOADING))
def test_every_answer_is_the_one_that_the_request_gets_alone(seed: int) -> None:
    done = run(seed, N_OPERATIONS)
    assert done["step"] > N_OPERATIONS // 2
    assert done["length"] > 30


@pytest.mark.parametrize("seed", (0, 1))
def test_drafts_of_the_executor_change_no_answer(seed: int) -> None:
    done = run(seed, N_OPERATIONS, misses=3)
    assert done["length"] > 30


@pytest.mark.skipif(not IS_WIDE, reason="10 s: make test-long and make explore run it")
def test_a_source_that_nobody_holds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_source = PrefixCache.hold_source

    def let_go(cache: PrefixCache, hit: Hit) -> BlockTable:
        table = hold_source(cache, hit)
        table.release()
        return table

    monkeypatch.setattr(PrefixCache, "hold_source", let_go)
    with pytest.raises((EngineFault, AssertionError)) as noticed:
        run(TELLING, 10 * N_OPERATIONS)  # it ends long before
    # When a mask is late the course is another, and an answer may be wrong before a plan is.
    said = str(noticed.value)
    assert "stands for other tokens" in said or "EngineRequest" in said
