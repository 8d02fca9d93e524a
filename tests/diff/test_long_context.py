"""Decoding behind a long context: threads share its segments, and no bit changes; attention sinks
from the program to the kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as with_fields
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from kvasir.core.plan import SlotOpen
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.formats.types import TensorInfo
from kvasir.ir.program import Weight
from kvasir.weights.bind import Binding, BoundWeight
from tests import tiny
from tests.loading import BLOCK, GREEDY, Loaded, load, reference_logits, sizes_for
from tests.native import BEST, native_logits, plan_logits
from tests.planned import Placed, placed, step_plan

LENGTH, MAX_LEN, CHUNK = 2200, 2304, 550
TOKENS = tuple((7 * i + i // 11) % tiny.VOCAB for i in range(LENGTH))


def executor(model: Loaded, threads: int) -> CpuExecutor:
    """Room for two long sequences."""
    spec = with_fields(sizes_for(model.config, 2, MAX_LEN), max_num_batched_tokens=CHUNK)
    return CpuExecutor(model.program, model.binding, spec, CpuSettings(threads, BEST))


def row(slot: int, start: int, stop: int, n_logits: int) -> Placed:
    first = slot * MAX_LEN // BLOCK
    tables = (tuple(range(first, first + MAX_LEN // BLOCK)),)
    return placed(slot, start, TOKENS[start:stop], tables, n_logits=n_logits)


def decoded(model: Loaded, threads: int) -> list[NDArray[np.float32]]:
    """Logits of one token alone, of ten at once, and of two sequences of unequal length."""
    run = executor(model, threads)
    opens = (SlotOpen(0, GREEDY, TOKENS), SlotOpen(1, GREEDY, TOKENS))
    for start in range(0, 1650, CHUNK):
        run.run(step_plan(0, (row(0, start, start + CHUNK, 0),), opens if start == 0 else ()))
    run.run(step_plan(1, (row(0, 1650, 2100, 0), row(1, 0, 40, 0))))
    steps = [
        (row(0, 2100, 2101, 1),),
        (row(0, 2101, 2111, 10),),
        (row(0, 2111, 2112, 1), row(1, 40, 42, 2)),
    ]
    return [plan_logits(run, step_plan(2 + i, rows)) for i, rows in enumerate(steps)]


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_threads_that_share_a_context_change_nothing(kv_dtype: str, tmp_path: Path) -> None:
    path = tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0")
    model = load(path, "auto", max_positions=MAX_LEN, kv_dtype=kv_dtype)
    alone = decoded(model, 1)
    assert all(np.isfinite(logits).all() for logits in alone)
    for threads in (2, 5):
        for logits, expected in zip(decoded(model, threads), alone, strict=True):
            assert_array_equal(logits, expected)


@pytest.mark.parametrize("window", [100, 1024, 1500])
def test_threads_that_share_a_window_change_nothing(window: int, tmp_path: Path) -> None:
    """Windows inside one segment are not shared by segments, longer ones are."""
    path = tiny.write_hf(tiny.mistral(window=window), tmp_path)
    model = load(path, "bfloat16", max_positions=MAX_LEN)
    alone = decoded(model, 1)
    assert all(np.isfinite(logits).all() for logits in alone)
    for logits, expected in zip(decoded(model, 5), alone, strict=True):
        assert_array_equal(logits, expected)


def with_sinks(model: Loaded, values: NDArray[np.float32]) -> Loaded:
    """The same program, every attention with ``values`` as its sinks."""
    program, source = model.program, model.binding
    sinks = Weight("sinks", values.shape)
    tensor = TensorInfo("sinks", "F32", values.shape, values.view(np.uint8).data)
    ops = tuple(
        with_fields(op, weights=("sinks",)) if op.kind == "attention" else op for op in program.ops
    )
    weights = {**program.weights, "sinks": sinks}
    bound = {**source.weights, "sinks": BoundWeight(sinks, (tensor,))}
    return replace(
        model, program=with_fields(program, ops=ops, weights=weights), binding=Binding(bound)
    )


def test_sinks_reach_the_kernels(tmp_path: Path) -> None:
    model = load(tiny.write_hf(tiny.llama(), tmp_path), "float32")
    prompt = TOKENS[:30]
    plain = native_logits(model, prompt)
    sinks = np.linspace(-1, 2, model.config.layers[0].n_heads).astype(np.float32)
    changed = with_sinks(model, sinks)
    assert_allclose(native_logits(changed, prompt), reference_logits(changed, prompt), atol=2e-5)
    assert np.abs(native_logits(changed, prompt) - plain).max() > 1e-3
    gone = with_sinks(model, np.full_like(sinks, -1e9))
    assert_array_equal(native_logits(gone, prompt), plain)
