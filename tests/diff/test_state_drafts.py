"""What rows of drafts do to states: one is read and one written, whatever they draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from kvasir.core.errors import KvasirError
from kvasir.core.groups import STATE_WINDOW, KVGroup
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, SlotOpen
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.models.spec import ScanSpec
from tests import tiny, tiny_kimi, tiny_scan, tiny_state
from tests.drafting import Drafts
from tests.exactness import Sizes, Variant, baseline, run
from tests.loading import Loaded, load
from tests.native import BEST
from tests.planned import placed, step_plan
from tests.request_sets import make_requests
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


MODELS = [tiny_state.lfm2, tiny_scan.mamba2, tiny_scan.qwen3_5, tiny_kimi.kimi_linear]


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


@pytest.mark.parametrize("make", MODELS)
def test_more_drafts_than_are_kept_are_refused_before_memory_is_written(
    make: Callable[[], TinyModel], tmp_path: Path
) -> None:
    slot = Slot(load(tiny.write_gguf_model(make(), tmp_path / "m.gguf", "Q8_0"), "auto"))
    row = (slot.drawn.token, *range(N_DRAFTS + 1))
    with pytest.raises(KvasirError, match="slot 0: 5 drafts over states that keep 4"):
        slot.row(30, row, len(row))


@pytest.mark.parametrize("n_drafts", [1, 4])
def test_forced_tokens_that_are_drawn_are_as_many_as_are_kept(
    n_drafts: int, tmp_path: Path
) -> None:
    """Their logprobs are wanted, so they are drawn in rows like those of drafts."""
    model = load(tiny.write_gguf_model(tiny_scan.qwen3_5(), tmp_path / "m.gguf", "Q8_0"), "auto")

    def make(sizes: EngineSizes) -> CpuExecutor:
        return CpuExecutor(model.program, model.binding, sizes, CpuSettings(1, BEST, hashes=True))

    sizes = Sizes(model.config.vocab_size, 128, state_bytes=sum(model.config.state_bytes))
    requests = [
        structs.replace(
            request, params=structs.replace(request.params, constraint="9:7!", n_logprobs=1)
        )
        for request in make_requests(4, sizes.vocab_size, seed=1, max_prompt=10, max_tokens=16)
    ]
    answers = baseline(make, requests, sizes).answers
    wrong = Drafts(n_drafts, wrong_depths=frozenset(range(1, n_drafts + 1)))
    found = run(make, requests, sizes, Variant("forced", drafts=wrong), answers)
    assert found.answers == answers
    assert found.stats.n_forced > n_drafts


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
