"""A decoder of random weights in any file format, for measuring kernels without a model file."""

from __future__ import annotations

import numpy as np

from kvasir.checkpoints import build_program
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.exec.cpu.passes import lower_passes
from kvasir.formats.decode import Bytes
from kvasir.formats.types import FORMATS, TensorInfo
from kvasir.ir.program import Program, Weight
from kvasir.models import BlockSpec, LayerSpec, ModelConfig
from kvasir.models.spec import ROPE, RopeConfig
from kvasir.weights.bind import Binding, BoundWeight

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 8192, 32, 8, 64, 256
"""The layer of a Llama of one billion parameters; few words, so that the LM head is small."""
ENOUGH_BYTES = 128 << 20
"""Packed weights from which a decode step cannot live in a last-level cache of 32 MB."""
MAX_LAYERS = 4
NORMAL_BYTES = (0x20, 0x3B)
"""Bytes between these make normal numbers as float16, bfloat16 and float32: no slow subnormals."""


def synthetic_config(n_layers: int, max_positions: int) -> ModelConfig:
    return ModelConfig(
        family="llama",
        kind="hf",
        block=BlockSpec(),
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        layers=(LayerSpec(HEADS, KV_HEADS, HEAD_DIM, FFN),) * n_layers,
        max_positions=max_positions,
        norm_eps=1e-5,
        attention_scale=HEAD_DIM**-0.5,
        ropes={ROPE: RopeConfig(10000.0)},
        tied=True,
    )


def layers_for(format_name: str) -> int:
    """Layers until the packed weights are ``ENOUGH_BYTES``, at most ``MAX_LAYERS``."""
    elements = HIDDEN * (2 * HIDDEN + 2 * KV_HEADS * HEAD_DIM + 3 * FFN)
    layer_bytes = elements * LAYOUTS[LAYOUT_OF_FORMAT[format_name]].bits / 8
    return min(MAX_LAYERS, -(-ENOUGH_BYTES // int(layer_bytes)))


def synthetic_program(
    format_name: str, max_positions: int, kv_dtype: str = "bf16"
) -> tuple[Program, Binding]:
    """The fused and placed program, and random weights of ``format_name``; vectors are ones."""
    config = synthetic_config(layers_for(format_name), max_positions)
    raw = build_program(config, max_positions=max_positions)
    binding = _random_binding(raw, format_name)
    dtype = {"F32": "float32", "F16": "float32", "BF16": "bfloat16"}.get(format_name, "auto")
    program = lower_passes(raw, dtype=dtype, formats=binding.formats(), kv_dtype=kv_dtype)
    return program, binding


def synthetic_executor(
    program: Program, binding: Binding, n_tokens: int, context: int, settings: CpuSettings
) -> CpuExecutor:
    """One sequence of up to ``context`` tokens, steps of up to ``n_tokens``."""
    block_size = 16
    sizes = EngineSizes(
        vocab_size=VOCAB,
        max_model_len=context,
        max_num_seqs=1,
        max_num_batched_tokens=n_tokens,
        n_blocks=-(-context // block_size),
        block_size=block_size,
    )
    return CpuExecutor(program, binding, sizes, settings)


def _random_binding(program: Program, format_name: str) -> Binding:
    largest = max(_n_bytes(weight, format_name) for weight in program.weights.values())
    low, high = NORMAL_BYTES
    noise = np.random.default_rng(20).integers(low, high + 1, largest, np.uint8)
    return Binding(
        {
            weight.name: BoundWeight(weight, (_tensor(weight, format_name, noise),))
            for weight in program.weights.values()
        }
    )


def _tensor(weight: Weight, format_name: str, noise: Bytes) -> TensorInfo:
    if len(weight.shape) == 1:
        ones = np.ones(weight.shape, np.float32).view(np.uint8)
        return TensorInfo(weight.name, "F32", weight.shape, ones.data)
    data = noise[: _n_bytes(weight, format_name)]
    return TensorInfo(weight.name, format_name, weight.shape, data.data)


def _n_bytes(weight: Weight, format_name: str) -> int:
    return FORMATS[format_name].n_bytes(weight.shape)
