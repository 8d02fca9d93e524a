"""Masks that threads of the native step make, and the same by way of the interpreter beside it."""

from __future__ import annotations

from dataclasses import replace as with_fields
from functools import partial
from pathlib import Path

import pytest

from kvasir.core.sizes import EngineSizes
from kvasir.engine.filling import StepMask
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.masks import NativeMasks
from kvasir.grammar.masks import GrammarMasks
from tests import exactness, tiny
from tests.byte_grammar import byte_tokens
from tests.exactness import Variant, baseline, run
from tests.loading import Loaded, load
from tests.native import BEST
from tests.unit.test_grammar_rows import SIZES as GRAMMAR_SIZES
from tests.unit.test_grammar_rows import requests

SIZES = with_fields(GRAMMAR_SIZES, max_model_len=128)


class MasksBeside(NativeMasks):
    """Brought, all of them."""

    @property
    def fills(self) -> None:
        return None


class ExecutorBeside(CpuExecutor):
    new_masks = MasksBeside


def made(kind: type[CpuExecutor], model: Loaded, threads: int, sizes: EngineSizes) -> CpuExecutor:
    return kind(model.program, model.binding, sizes, CpuSettings(threads, BEST, hashes=True))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("jumps", [True, False], ids=["jumping", "step by step"])
def test_who_makes_masks_changes_no_answer(
    threads: int, jumps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactness, "Ring", lambda n_ids: GrammarMasks(byte_tokens))
    model = load(tiny.write_hf(tiny.llama(vocab_size=SIZES.vocab_size), tmp_path), "float32")
    asked = [one for one in requests() if one.params.constraint][:8]
    booked: list[StepMask] = []
    book = StepMask.booked

    def noted(one: StepMask) -> None:
        booked.append(one)
        book(one)

    monkeypatch.setattr(StepMask, "booked", noted)
    expected = baseline(partial(made, ExecutorBeside, model, threads), asked, SIZES).answers
    assert not booked
    variant = Variant("overlapped", n_seqs=8, overlap=True, jump_ahead=jumps)
    assert (
        run(partial(made, CpuExecutor, model, threads), asked, SIZES, variant).answers == expected
    )
    assert booked
