"""What latent attention keeps of a token, and which of its relatives are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as with_fields
from numpy.testing import assert_allclose, assert_array_equal

from kvasir.checkpoints import config_from
from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.core.errors import ModelError
from kvasir.core.kvtypes import KV_TYPES
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.kvmem import KVMemory
from kvasir.ir.cost import op_cost
from kvasir.ir.ops import OPS, ShapeError, Sizes
from kvasir.ir.program import KVSpec, freeze
from kvasir.weights.source import open_model
from tests import tiny, tiny_latent, tiny_state
from tests.loading import load
from tests.op_cases import LATENT_LAYER, OP_CASES, POSITIONS, environment

BLOCK, RANK, DIM = 16, 512, 576
Attrs = dict[str, int | float]


def memory(dtype: str) -> KVMemory:
    sizes = EngineSizes(
        vocab_size=10,
        max_model_len=64,
        max_num_seqs=1,
        max_num_batched_tokens=1,
        n_blocks=4,
        block_size=BLOCK,
    )
    return KVMemory.allocate((KVSpec(0, "full", 0, 1, DIM, dtype, latent=RANK),), sizes)


def test_a_token_of_deepseek_v3_takes_1152_bytes_of_a_layer() -> None:
    assert memory("bf16").groups[0].shape[1] == BLOCK * 1152


@pytest.mark.parametrize("dtype", KV_TYPES)
def test_a_copied_entry_is_whole(dtype: str) -> None:
    """Row 5 of block 2 to row 3 of block 0: its numbers and its scale, and nothing else."""
    kv, kind = memory(dtype), KV_TYPES[dtype]
    blocks = kv.groups[0]
    assert blocks.shape[1] == BLOCK * kind.head_bytes(DIM)
    blocks[:] = np.random.default_rng(1).integers(0, 256, blocks.shape, np.uint8)
    expected, entry = blocks.copy(), DIM * kind.item_bytes
    expected[0, 3 * entry : 4 * entry] = blocks[2, 5 * entry : 6 * entry]
    scales = expected[:, BLOCK * entry :].reshape(4, BLOCK, kind.scale_bytes)
    scales[0, 3] = scales[2, 5]
    kv.copy(0, (2, 5), (0, 3))
    assert_array_equal(blocks, expected)


def test_a_latent_is_normed_and_its_key_turned() -> None:
    case, env = next(x for x in OP_CASES if x.name == "latent-write-interleaved"), environment()
    case.run(env)
    x, weight = case.inputs[0][1], case.weights[0][1]
    assert isinstance(x, np.ndarray)
    root = np.sqrt((x[:, :8].astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)
    entry, latent = env.written[LATENT_LAYER]
    assert_allclose(latent[:, 0], x[:, :8] / root * weight, rtol=1e-5)
    assert_array_equal(entry[:, 0, :8], latent[:, 0])
    table = env.constants["rope8"][POSITIONS]
    turned = (x[:, 8::2] + 1j * x[:, 9::2]) * (table[:, :4] + 1j * table[:, 4:])
    assert_allclose(entry[:, 0, 8::2] + 1j * entry[:, 0, 9::2], turned, rtol=1e-5, atol=1e-6)


def test_planning_counts_one_entry_of_a_layer(tmp_path: Path) -> None:
    facts = model_facts(load_model(str(tiny.write_hf(tiny_latent.deepseek_v3(), tmp_path))))
    assert facts.kv_vectors_per_token == 3
    assert facts.kv_values_per_token == 3 * (tiny_latent.RANK + tiny_latent.ROPE)


def test_cost_reads_each_entry_once(tmp_path: Path) -> None:
    """However many heads: 80 numbers of bf16 for each of 100 entries, and a token's rows."""
    model = load(tiny.write_hf(tiny_latent.deepseek_v3(), tmp_path), "bfloat16")
    op = next(op for op in model.program.ops if op.kind == "latent_attention")
    cost = op_cost(model.program, op, Sizes(1, 1, attended=100, kv_entries=100))
    assert cost.flops == 2 * 100 * 4 * (80 + 64)
    assert cost.bytes == 100 * 160 + 4 * (4 * 80 + 4 * 64)


def test_sparse_indexers_are_refused_by_name(tmp_path: Path) -> None:
    model = tiny_latent.deepseek_v3(architectures=["DeepseekV32ForCausalLM"], index_topk=2048)
    config = {**model.config, "architectures": ["DeepseekV32ForCausalLM"]}
    norm = {"model.layers.0.self_attn.indexer.k_norm.weight": tiny.uniform("indexer", (16,), 1.0)}
    model = replace(model, config=config, tensors={**model.tensors, **norm})
    expected = r"'DeepseekV32ForCausalLM' is not supported.*Nearest is deepseek_v3.*indexer"
    with pytest.raises(ModelError, match=expected):
        config_from(open_model(tiny.write_hf(model, tmp_path)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 8}, "window=8, expected 0"),
        ({"scale": 0.0}, "scale=0.0, expected more than 0"),
        ({"n_kv_heads": 2}, "n_kv_heads=2, expected 1"),
        ({"latent": 16}, "latent=16 of entries of 16 numbers"),
    ],
)
def test_latent_attention_that_cannot_be_is_named(change: Attrs, message: str) -> None:
    case = next(x for x in OP_CASES if x.name == "latent-attention")
    op = with_fields(case.op, attrs=freeze({**case.op.attrs, **change}))
    with pytest.raises(ShapeError, match=message):
        OPS[op.kind].infer(op, [value for value, _ in case.inputs], [])


def test_cost_of_linears_of_heads_and_of_states(tmp_path: Path) -> None:
    """Of 3 tokens: a product for each number of the weight; a state is read and written."""
    program = load(tiny.write_hf(tiny_latent.deepseek_v3(), tmp_path / "v3"), "bfloat16").program
    op = next(op for op in program.ops if op.kind == "head_linear")
    assert op_cost(program, op, Sizes(3, 1)).flops == 2 * 3 * 4 * 64 * 32
    program = load(tiny.write_hf(tiny_state.lfm2(), tmp_path / "lfm2"), "bfloat16").program
    op = next(op for op in program.ops if op.kind == "short_conv")
    one, three = (op_cost(program, op, Sizes(n, 1)).bytes for n in (1, 3))
    assert (three - one) / 2 == 4 * (3 * 64 + 64) + 2 * 4 * 3 * 64
