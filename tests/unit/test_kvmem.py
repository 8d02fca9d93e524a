"""The bytes of the KV memory: as planned, and rows copied whole."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kvasir.config.hardware import Hardware
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import resolve
from kvasir.config.resolved import ModelFacts
from kvasir.core.kvtypes import KV_OPTIONS, KV_TYPES
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.kvmem import KVMemory
from kvasir.ir.program import KVSpec
from tests.diff.attention_case import Pages, Shape
from tests.settings import cpu_settings

LAYERS, HEADS, DIM, BLOCK = 3, 2, 48, 32


def memory(dtype: str, layers: int = LAYERS, n_blocks: int = 4) -> KVMemory:
    spec = EngineSizes(
        vocab_size=10,
        max_model_len=128,
        max_num_seqs=1,
        max_num_batched_tokens=1,
        n_blocks=n_blocks,
        block_size=BLOCK,
    )
    kv = tuple(KVSpec(layer, "full", 0, HEADS, DIM, dtype) for layer in range(layers))
    return KVMemory.allocate(kv, spec)


@pytest.mark.parametrize("name", KV_OPTIONS)
def test_blocks_are_as_large_as_planned(name: str) -> None:
    facts = ModelFacts("m", 10, 64, 2 * LAYERS * HEADS * DIM, 0, "quantized", 2 * LAYERS * HEADS)
    options = EngineOptions(kv_cache_dtype=name, block_size=BLOCK)
    planned = resolve(options, facts, Hardware(1, 1, 1 << 30, ("scalar",)), cpu_settings)
    assert memory(KV_OPTIONS[name].short).groups[0].shape[1] == planned.kv.block_bytes


@pytest.mark.parametrize("dtype", KV_TYPES)
def test_a_copied_row_means_the_same(dtype: str) -> None:
    """Row 19 of block 2 to row 3 of block 0: its K, V and scales, and nothing else."""
    kv = memory(dtype, layers=1)
    pages = Pages(Shape(DIM, 1, HEADS, dtype, BLOCK), 4 * BLOCK, np.arange(4, dtype=np.int32))
    assert pages.memory.shape == kv.groups[0].shape
    rng = np.random.default_rng(1)
    pages.write(0, *rng.standard_normal((2, 4 * BLOCK, HEADS, DIM)).astype(np.float32))
    kv.groups[0][:] = pages.memory
    kv.copy(0, (2, 19), (0, 3))
    expected = pages.values()
    expected[0, :, :, 3] = expected[2, :, :, 19]
    pages.memory[:] = kv.groups[0]
    assert_array_equal(pages.values(), expected)
