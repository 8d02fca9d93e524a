"""Fusion, layouts, phases: what the golden programs do not show."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.exec.cpu.passes import lower_passes
from kvasir.exec.cpu.place_weights import layout_for, place_weights
from kvasir.ir.bundle import POOL
from kvasir.ir.cost import op_cost, program_cost, weights_read
from kvasir.ir.fuse import fuse
from kvasir.ir.ops import OPS, ShapeError, Sizes
from kvasir.ir.phases import phases
from kvasir.ir.pool import with_pool
from kvasir.ir.program import Op, Program, freeze
from kvasir.ir.rewrite import with_ops
from kvasir.ir.verify import verify
from tests import tiny, tiny_layer_norms
from tests.loading import load


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return load(tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("llama"))).program


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return load(tiny.write_hf(tiny.mixtral(), tmp_path_factory.mktemp("mixtral"))).program


def kinds(program: Program) -> list[str]:
    return [op.kind for op in program.ops]


def all_as(program: Program, format: str) -> dict[str, str]:
    return dict.fromkeys(program.weights, format)


def test_a_block_becomes_eight_ops(llama: Program) -> None:
    block = ["norm", "linear", "rope_write", "attention", "linear", "norm", "linear", "linear"]
    expected = ["embed", *block * 3, "gather_rows", "norm", "lm_head", "sample"]
    assert kinds(fuse(llama)) == expected
    lowered = lower_passes(llama, dtype="float32", formats=all_as(llama, "F32"))
    assert kinds(lowered) == expected


def test_an_mlp_without_gate_activates_where_it_is_computed(tmp_path: Path) -> None:
    """Behind the one norm of a parallel block, which gives what both read."""
    path = tiny.write_gguf_model(tiny_layer_norms.phi(), tmp_path / "m.gguf", "Q8_0")
    program = load(path, "auto").program
    block = ["layer_norm", "linear", "rope_write", "attention", "cast", "linear", "linear"]
    assert kinds(program)[1:9] == [*block, "linear"]
    norm, up = (op for op in program.ops if op.outs[0] in ("l0.attn_norm", "l0.hidden"))
    assert (norm.word("to"), up.word("to"), up.word("epilogue")) == ("q8", "q8", "act")
    assert up.ins == norm.outs
    readers = [op.outs[0] for op in program.ops if norm.outs[0] in op.ins]
    assert readers == ["l0.qkv", "l0.hidden"]


def test_an_activation_of_what_others_read_too_is_not_lowered(llama: Program) -> None:
    gate = next(op for op in llama.ops if op.outs == ("l0.gate",))
    both = next(op for op in llama.ops if op.kind == "gated_act")
    act = Op("act", gate.outs, both.outs, (), freeze({"act": "silu"}))
    ops = tuple(act if op is both else op for op in llama.ops if op.outs != ("l0.up",))
    kept = with_ops(replace(llama, outputs=(*llama.outputs, *gate.outs)), ops)
    assert "act" in kinds(fuse(kept))
    assert "act" not in kinds(fuse(replace(kept, outputs=llama.outputs)))


def test_pooled_rows_have_the_norm_of_the_model(tmp_path: Path) -> None:
    program = load(tiny.write_hf(tiny_layer_norms.starcoder2(), tmp_path), "float32").program
    pooling = with_pool(program).programs[POOL]
    assert kinds(pooling) == ["gather_rows", "layer_norm", "pool"]
    assert pooling.ops[1].weights == ("final_norm", "final_norm.bias")


def test_fusion_leaves_only_lowered_ops(mixtral: Program) -> None:
    assert all("lowered" in OPS[kind].stages for kind in kinds(fuse(mixtral)))


def test_a_linear_read_twice_keeps_its_add(llama: Program) -> None:
    """The output of the first down projection is also an output of the program."""
    down = next(op for op in llama.ops if op.outs == ("l0.down",))
    kept = replace(llama, outputs=(*llama.outputs, *down.outs))
    fused = fuse(kept)
    verify(
        replace(fused, weights={n: replace(w, layout="f32") for n, w in fused.weights.items()}),
        "lowered",
    )
    assert "l0.down" in fused.values


def test_attention_without_a_linear_below_is_refused(llama: Program) -> None:
    """Fusion looks for linear, rope, attention; anything else must not be dropped in silence."""
    at = next(i for i, op in enumerate(llama.ops) if op.kind == "attention")
    direct = replace(llama.ops[at], ins=("l0.attn_norm",))
    with pytest.raises(ShapeError, match=r"l0\.attn_norm"):
        fuse(replace(llama, ops=(*llama.ops[:at], direct, *llama.ops[at + 1 :])))


@pytest.mark.parametrize(
    ("format", "dtype", "layout"),
    [
        ("Q4_0", "auto", "q4z"),
        ("Q4_1", "auto", "q4m"),
        ("Q8_0", "auto", "q8"),
        ("Q4_K", "auto", "q4k"),
        ("Q6_K", "auto", "q6k"),
        ("IQ4_NL", "auto", "iq4"),
        ("IQ1_M", "auto", "iq1m"),
        ("Q2_K", "auto", "q2k"),
        ("BF16", "auto", "bf16"),
        ("F16", "auto", "f16"),
        ("F32", "auto", "f32"),
        ("Q4_0", "float32", "f32"),
        ("F16", "float32", "f16"),
        ("Q4_1", "bfloat16", "bf16"),
    ],
)
def test_layouts(format: str, dtype: str, layout: str, llama: Program) -> None:
    assert layout_for("w", format, dtype) == layout
    lowered = lower_passes(llama, dtype=dtype, formats=all_as(llama, format))
    matrices = {n: w for n, w in lowered.weights.items() if len(w.shape) == 2}
    assert {weight.layout for weight in matrices.values()} == {layout}
    norms = {w.layout for n, w in lowered.weights.items() if n.endswith("norm")}
    assert norms == {"f32"}
    assert {spec.dtype for spec in lowered.kv} == {"f32" if dtype == "float32" else "bf16"}


def test_unknown_formats_and_dtypes_are_refused(llama: Program) -> None:
    with pytest.raises(ValueError, match="no layout for format NVFP4"):
        place_weights(fuse(llama), dtype="auto", formats=all_as(llama, "NVFP4"))
    with pytest.raises(ValueError, match="expected auto, bfloat16 or float32"):
        place_weights(fuse(llama), dtype="int3", formats=all_as(llama, "Q4_0"))


def test_segments_of_different_activations_share_f32(llama: Program) -> None:
    formats = all_as(llama, "Q4_0") | {"layers.1.k": "BF16"}
    lowered = lower_passes(llama, dtype="auto", formats=formats)
    layouts = {name: lowered.weights[f"layers.1.{name}"].layout for name in ("q", "k", "v", "o")}
    assert layouts == {"q": "f32", "k": "f32", "v": "f32", "o": "q4z"}
    norm = next(op for op in lowered.ops if op.outs == ("l1.attn_norm",))
    assert norm.word("to") == "f32"


def test_integer_segments_of_different_formats_stay(llama: Program) -> None:
    formats = all_as(llama, "Q4_1") | {"layers.0.v": "Q8_0"}
    lowered = lower_passes(llama, dtype="auto", formats=formats)
    assert [lowered.weights[f"layers.0.{n}"].layout for n in "qkv"] == ["q4m", "q4m", "q8"]


@pytest.mark.parametrize(
    ("gate", "up", "layout"),
    [
        ("Q4_0", "Q8_0", "q8s"),
        ("Q6_K", "Q4_K", "q8m"),
        ("Q4_K", "Q4_K", "q4k"),
        ("Q4_K", "F16", "f32"),
    ],
)
def test_gate_and_up_share_a_layout(gate: str, up: str, layout: str, llama: Program) -> None:
    """Their tiles lie side by side; 8-bit integers hold the values of every integer format."""
    formats = all_as(llama, "Q4_0") | {"layers.0.gate": gate, "layers.0.up": up}
    lowered = lower_passes(llama, dtype="auto", formats=formats)
    assert [lowered.weights[f"layers.0.{n}"].layout for n in ("gate", "up")] == [layout] * 2
    assert lowered.weights["layers.1.gate"].layout == "q4z"


def casts(program: Program) -> list[str]:
    return [op.ins[0] for op in program.ops if op.kind == "cast"]


def test_gated_linears_and_attention_give_what_is_read(llama: Program) -> None:
    lowered = lower_passes(llama, dtype="bfloat16", formats=all_as(llama, "BF16"))
    assert casts(lowered) == []
    given = {op.word("to") for op in lowered.ops if op.outs[0] in ("l1.attn", "l1.hidden")}
    assert given == {"bf16"}


@pytest.mark.parametrize(("head_dim", "left"), [(16, ["l0.attn", "l1.attn", "l2.attn"]), (32, [])])
def test_an_int8_block_comes_from_one_kv_head(
    head_dim: int, left: list[str], tmp_path: Path
) -> None:
    """Two query heads a KV head: blocks of 64 columns are those of heads of 32, not of 16."""
    program = load(tiny.write_hf(tiny.llama(head_dim=head_dim), tmp_path)).program
    lowered = lower_passes(program, dtype="auto", formats=all_as(program, "Q4_0"))
    assert casts(lowered) == left


def test_norm_feeds_router_and_experts(mixtral: Program) -> None:
    """The router reads f32, the experts a cast of the same rows."""
    lowered = lower_passes(mixtral, dtype="auto", formats=all_as(mixtral, "Q4_0"))
    norm = next(op for op in lowered.ops if op.outs == ("l0.mlp_norm",))
    assert norm.word("to") == "f32"
    readers = {
        op.kind: op.ins[0]
        for op in lowered.ops
        if op.outs[:1] in (("l0.router",), ("l0.experts.hidden",))
    }
    assert readers == {"linear": "l0.mlp_norm", "expert_linear": "l0.mlp_norm.q8"}
    assert lowered.weights["layers.0.router"].layout == "f32"


def test_activation_block_limit(llama: Program) -> None:
    lowered = lower_passes(llama, dtype="auto", formats=all_as(llama, "Q8_0"), act_block=32)
    assert {value.block for value in lowered.values.values() if value.dtype == "q8"} == {32}


@pytest.mark.parametrize("is_fused", [False, True])
def test_phases_respect_every_dependency(is_fused: bool, mixtral: Program) -> None:
    program = fuse(mixtral) if is_fused else mixtral
    order = phases(program)
    made = {name: phase for op, phase in zip(program.ops, order, strict=True) for name in op.outs}
    for op, phase in zip(program.ops, order, strict=True):
        assert all(made.get(name, -1) < phase for name in op.ins)
        if op.kind == "attention":
            writers = [
                p
                for other, p in zip(program.ops, order, strict=True)
                if other.kind in ("rope_write", "kv_write")
                and other.integer("layer") == op.integer("layer")
            ]
            assert max(writers) < phase


def test_independent_ops_share_a_phase(llama: Program) -> None:
    order = dict(zip((op.outs for op in llama.ops), phases(llama), strict=True))
    assert order["l0.q",] == order["l0.k",] == order["l0.v",]
    assert order["l0.gate",] == order["l0.up",]


def test_cost_of_a_step(llama: Program) -> None:
    """One token reads every matrix once and does two operations for each of its elements."""
    lowered = lower_passes(llama, dtype="auto", formats=all_as(llama, "Q4_0"))
    matrices = [w for n, w in lowered.weights.items() if len(w.shape) == 2 and n != "embed"]
    elements = sum(weight.n_elements for weight in matrices)
    cost = program_cost(lowered, Sizes(1, 1, attended=1, kv_entries=1))
    linear = sum(
        op_cost(lowered, op, Sizes(1, 1)).flops
        for op in lowered.ops
        if op.weights and op.kind in ("linear", "lm_head")
    )
    assert linear == 2 * elements
    assert cost.flops >= linear
    assert sum(weight.n_bytes for weight in matrices) == elements * 4.5 / 8
    assert cost.bytes >= elements * 4.5 / 8


def test_cost_of_experts(mixtral: Program) -> None:
    """A cast between experts, which knows no experts itself, has a row for each of a token's."""
    program = lower_passes(mixtral, dtype="bfloat16", formats=all_as(mixtral, "BF16"))
    casts = [op for op in program.ops if op.kind == "cast" and "experts" in op.ins[0]]
    assert len(casts) == 2
    for op in casts:
        assert op_cost(program, op, Sizes(3, 1)).bytes == 3 * 2 * 96 * (4 + 2)
    assert program_cost(program, Sizes(3, 1)).bytes > 3 * 2 * 96 * 6


def test_a_token_reads_a_row_of_the_embedding_and_its_experts(mixtral: Program) -> None:
    program = lower_passes(mixtral, dtype="auto", formats=all_as(mixtral, "Q4_0"))
    n_bytes = {name: weight.n_bytes for name, weight in program.weights.items()}
    experts = sum(
        n_bytes[name] for op in program.ops if op.kind == "expert_linear" for name in op.weights
    )
    vocabulary = program.weights["embed"].shape[0]
    unread = n_bytes["embed"] * (1 - 1 / vocabulary) + experts / 2
    assert experts > 0
    assert weights_read(program, Sizes(1, 1)) == pytest.approx(sum(n_bytes.values()) - unread)
    assert weights_read(program, Sizes(vocabulary, 1)) == pytest.approx(sum(n_bytes.values()))


def test_fused_and_raw_cost_the_same_matrices(llama: Program) -> None:
    sizes = Sizes(7, 2)

    def matrices(program: Program) -> float:
        names = ("linear", "lm_head")
        return sum(op_cost(program, op, sizes).flops for op in program.ops if op.kind in names)

    assert matrices(llama) == matrices(fuse(llama))
