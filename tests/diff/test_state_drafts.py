"""What rows of drafts do to states: one is read and one written, whatever they draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir.core.groups import STATE_WINDOW, KVGroup
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, SlotOpen
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.models.spec import ScanSpec
from tests import tiny, tiny_scan, tiny_state
from tests.loading import Loaded, load
from tests.native import BEST
from tests.planned import placed, step_plan
from tests.tiny import TinyModel

PROMPT = tuple((7 * i * i + 3 * i + 5) % tiny.VOCAB for i in range(30))
N_DRAFTS = 4
TABLES = ((0, 1, 2), (0, 0, 1))
"""The state goes on in its block behind the first 16 tokens; behind 32 it leaves a snapshot."""


class Slot:
    """One request on an executor of its own, row after row."""

    def __init__(self, model: Loaded) -> None:
        n_bytes = sum(model.config.state_bytes)
        group = KVGroup(2, STATE_WINDOW, n_bytes, drafts=N_DRAFTS)
        sizes = EngineSizes(model.config.vocab_size, 48, 1, 64, 3, 16, (group,))
        settings = CpuSettings(2, BEST, hashes=True)
        self.executor = CpuExecutor(model.program, model.binding, sizes, settings)
        self.n_steps = 0
        (self.drawn,) = self.row(0, PROMPT, 1)

    def row(self, start: int, tokens: tuple[int, ...], n_logits: int) -> tuple[RowOutput, ...]:
        row = placed(0, start, tokens, TABLES, n_logits=n_logits, out_index=max(0, start - 29))
        params = TokenParams(seed=0, max_tokens=18, temperature=0)
        opens = () if self.n_steps else (SlotOpen(0, params, PROMPT),)
        plan = step_plan(self.n_steps, (row,), opens)
        self.n_steps += 1
        return self.executor.run(plan).outputs

    def states(self) -> NDArray[np.uint8]:
        return self.executor._kv.groups[1].copy()


MODELS = [tiny_state.lfm2, tiny_scan.mamba2, tiny_scan.qwen3_5]


@pytest.mark.parametrize("make", MODELS)
def test_drafts_leave_the_state_of_the_token_before_them(
    make: Callable[[], TinyModel], tmp_path: Path
) -> None:
    """Right and wrong ones; the next row takes in those that were right, past an end of a block."""
    model = load(tiny.write_gguf_model(make(), tmp_path / "m.gguf", "Q8_0"), "auto")
    plain, drafted = Slot(model), Slot(model)
    kept = drafted.executor._arrays.arrays["kept_inputs"]
    assert kept.nbytes == N_DRAFTS * model.config.kept_bytes  # what is planned for it
    known, expected = [plain.drawn.token], []
    for start in range(30, 36):
        (output,) = plain.row(start, (known[-1],), 1)
        known.append(output.token)
        expected.append(output)
        if start == 30:
            states = plain.states()
    wrong = (known[4] + 1) % tiny.VOCAB
    found = drafted.row(30, (*known[:4], wrong), 5)  # three are right
    assert found[:4] == tuple(expected[:4])
    assert np.array_equal(drafted.states()[0], states[0])
    found = drafted.row(34, (known[4], wrong, wrong), 3)
    assert found[0] == expected[4]
    (last,) = drafted.row(35, (known[5],), 1)
    assert last == expected[5]
    assert np.array_equal(drafted.states(), plain.states())


SCANS = {
    "Qwen3.5-9B": ScanSpec("delta", 32, 128, 16, 128, 4),
    "Qwen3-Next-80B": ScanSpec("delta", 32, 128, 16, 128, 4),
    "Granite-4.0-H-Tiny": ScanSpec("ssd", 48, 64, 1, 128, 4),
    "Mamba-2-2.7B": ScanSpec("ssd", 80, 64, 1, 128, 4),
}


@pytest.mark.parametrize("name", SCANS)
def test_five_rows_of_wrong_drafts_move_at_most_a_twentieth_more(name: str) -> None:
    """Per layer: a state read and written, and of four drafted tokens what convolution and scan
    keep: a row, steps, and shares where the rule has any."""
    scan = SCANS[name]
    state = 2 * sum(scan.state_sizes)
    kept = scan.columns + scan.n_heads * (1 + (scan.rule == "delta"))
    assert state < state + N_DRAFTS * kept <= 1.05 * state
