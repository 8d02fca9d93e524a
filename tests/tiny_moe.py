"""Tiny random models of the families with experts, as ``tests.tiny`` has them of the first
families. No constant has the value that changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tests import tiny, tiny_kin, tiny_rope
from tests.tiny import Array, TinyModel

HIDDEN, INNER, SHARED = 64, 32, 96
GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"


def qwen2_moe(**overrides: object) -> TinyModel:
    """A shared expert with a gate."""
    own: dict[str, object] = {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "tie_word_embeddings": False,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": INNER,
        "shared_expert_intermediate_size": SHARED,
        "norm_topk_prob": False,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }
    model = tiny.qwen2(**(own | overrides))
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        shapes |= mixture(f"{layer}.mlp", 6, "gate")
        shapes |= gated_mlp(f"{layer}.mlp.shared_expert", SHARED)
        shapes[f"{layer}.mlp.shared_expert_gate.weight"] = (1, HIDDEN)
    return with_tensors(model, "tiny-qwen2-moe", shapes)


def granite_moe(**overrides: object) -> TinyModel:
    """Gate and up of all experts in one tensor."""
    return _granite_moe("tiny-granite-moe", "GraniteMoe", overrides)


def granite_moe_shared(**overrides: object) -> TinyModel:
    model = _granite_moe("tiny-granite-moe-shared", "GraniteMoeShared", overrides)
    model = replace(model, config={**model.config, "shared_intermediate_size": SHARED})
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        shapes[f"{layer}.shared_mlp.input_linear.weight"] = (2 * SHARED, HIDDEN)
        shapes[f"{layer}.shared_mlp.output_linear.weight"] = (HIDDEN, SHARED)
    return with_tensors(model, model.name, shapes)


def _granite_moe(name: str, prefix: str, overrides: Mapping[str, object]) -> TinyModel:
    own: dict[str, object] = {
        "num_hidden_layers": 2,
        "intermediate_size": INNER,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
    }
    names = {"architectures": [f"{prefix}ForCausalLM"], "model_type": prefix.lower()}
    model = tiny_kin.granite(**(own | dict(overrides)))
    model = replace(model, config={**model.config, **names})
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        part = f"{layer}.block_sparse_moe"
        shapes[f"{part}.router.layer.weight"] = (6, HIDDEN)
        shapes[f"{part}.input_linear.weight"] = (6, 2 * INNER, HIDDEN)
        shapes[f"{part}.output_linear.weight"] = (6, HIDDEN, INNER)
    return with_tensors(model, name, shapes)


def ernie45_moe(**overrides: object) -> TinyModel:
    """Experts chosen by softmax and a bias in two layers of four; two shared."""
    own: dict[str, object] = {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_intermediate_size": INNER,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 3,
        "moe_layer_interval": 2,
        "use_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
    }
    names = {"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe"}
    model = tiny_kin.ernie45(**(own | overrides))
    model = replace(model, config={**model.config, **names})
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in ("model.layers.1", "model.layers.3"):
        shapes |= mixture(f"{layer}.mlp", 6, "gate")
        shapes |= gated_mlp(f"{layer}.mlp.shared_experts", 2 * INNER)
        shapes[f"{layer}.mlp.moe_statics.e_score_correction_bias"] = (1, 6)
    return with_tensors(model, "tiny-ernie4_5-moe", shapes)


def gpt_oss(**overrides: object) -> TinyModel:
    """YaRN; sinks; two layers of four slide; gate and up of experts in turns, input by output."""
    own: dict[str, object] = {
        "num_hidden_layers": 4,
        "intermediate_size": INNER,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
        "pad_token_id": 2,
    }
    model = tiny.llama("tiny-gpt-oss", **(own | overrides))
    names = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}
    model = replace(model, config={**model.config, **names})
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        part = f"{layer}.mlp.experts"
        shapes[f"{layer}.self_attn.sinks"] = (4,)
        shapes |= {f"{layer}.mlp.router.weight": (6, HIDDEN), f"{layer}.mlp.router.bias": (6,)}
        shapes[f"{part}.gate_up_proj"] = (6, HIDDEN, 2 * INNER)
        shapes[f"{part}.gate_up_proj_bias"] = (6, 2 * INNER)
        shapes |= {f"{part}.down_proj": (6, INNER, HIDDEN), f"{part}.down_proj_bias": (6, HIDDEN)}
    return with_tensors(model, "tiny-gpt-oss", shapes)


def olmoe(**overrides: object) -> TinyModel:
    """Norms of all heads as one row, weights of experts as they are."""
    own: dict[str, object] = {
        "num_hidden_layers": 2,
        "intermediate_size": INNER,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
        "pad_token_id": 2,
    }
    model = tiny.llama("tiny-olmoe", **(own | overrides))
    names = {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe"}
    model = replace(model, config={**model.config, **names})
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        shapes |= mixture(f"{layer}.mlp", 6, "gate")
        shapes |= {
            f"{layer}.self_attn.q_norm.weight": (64,),
            f"{layer}.self_attn.k_norm.weight": (32,),
        }
    return with_tensors(model, "tiny-olmoe", shapes)


def minimax_m2(**overrides: object) -> TinyModel:
    """Sigmoid and bias, norms of all heads as one row, rope in half of each."""
    own: dict[str, object] = {
        "num_hidden_layers": 2,
        "intermediate_size": INNER,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "rotary_dim": 8,
    }
    model = tiny.llama("tiny-minimax-m2", **(own | overrides))
    names = {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2"}
    model = replace(model, config={**model.config, **names})
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        part = f"{layer}.block_sparse_moe"
        shapes |= mixture(part, 8, "gate", ("w1", "w3", "w2"))
        shapes[f"{part}.e_score_correction_bias"] = (8,)
        shapes |= {
            f"{layer}.self_attn.q_norm.weight": (64,),
            f"{layer}.self_attn.k_norm.weight": (32,),
        }
    return with_tensors(model, "tiny-minimax-m2", shapes)


def glm4_moe(**overrides: object) -> TinyModel:
    """Two of four groups, two shared experts, a dense layer first, norms of heads, rope in half."""
    own: dict[str, object] = {
        "num_hidden_layers": 3,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": INNER,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "num_nextn_predict_layers": 0,
        "pad_token_id": 2,
    }
    model = tiny.llama("tiny-glm4-moe", **(own | overrides))
    names = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"}
    model = tiny_kin.without(replace(model, config={**model.config, **names}), "o_proj.bias")
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        shapes |= {f"{layer}.self_attn.{x}_norm.weight": (16,) for x in ("q", "k")}
    model = with_tensors(model, model.name, shapes, dense=True)
    shapes = {}
    for layer in sparse_layers(model)[1:]:
        shapes |= mixture(f"{layer}.mlp", 8, "gate")
        shapes |= gated_mlp(f"{layer}.mlp.shared_experts", 2 * INNER)
        shapes[f"{layer}.mlp.gate.e_score_correction_bias"] = (8,)
    return with_tensors(model, model.name, shapes)


def exaone_moe(**overrides: object) -> TinyModel:
    """Three layers of four slide, the full one has no rope; a dense layer first."""
    own: dict[str, object] = {
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "layer_types": tiny_kin.SLIDES,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": INNER,
        "num_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "mlp_layer_types": ["dense", *["sparse"] * 3],
        "num_nextn_predict_layers": 0,
        "pad_token_id": 2,
    }
    model = tiny.llama("tiny-exaone-moe", **(own | overrides))
    names = {"architectures": ["ExaoneMoeForCausalLM"], "model_type": "exaone_moe"}
    model = replace(model, config={**model.config, **names})
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        shapes |= {f"{layer}.self_attn.{x}_norm.weight": (16,) for x in ("q", "k")}
    model = with_tensors(model, model.name, shapes, dense=True)
    shapes = {}
    for layer in sparse_layers(model)[1:]:
        shapes |= mixture(f"{layer}.mlp", 8, "gate")
        shapes |= gated_mlp(f"{layer}.mlp.shared_experts", 2 * INNER)
        shapes[f"{layer}.mlp.e_score_correction_bias"] = (8,)
    return with_tensors(model, model.name, shapes)


def hunyuan_moe(**overrides: object) -> TinyModel:
    """Sizes of experts and how many are chosen, layer by layer; all biases of attention."""
    n_layers = 3
    own: dict[str, object] = {
        "num_hidden_layers": n_layers,
        "intermediate_size": INNER,
        "num_experts": 6,
        "moe_topk": [2] * n_layers,
        "moe_intermediate_size": [INNER] * n_layers,
        "num_shared_expert": [1] * n_layers,
        "use_mixed_mlp_moe": True,
    }
    model = tiny_rope.hunyuan_dense(**(own | overrides))
    names = {"architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe"}
    model = replace(model, config={**model.config, **names})
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        shapes |= mixture(f"{layer}.mlp", 6, "gate.wg")
        shapes |= gated_mlp(f"{layer}.mlp.shared_mlp", INNER)
    return with_tensors(model, "tiny-hunyuan-moe", shapes)


def sparse_layers(model: TinyModel) -> list[str]:
    """Prefixes of the layers that are not said to be dense."""
    dense = model.config.get("mlp_only_layers") or ()
    assert isinstance(dense, Iterable)
    layers = range(model.size("num_hidden_layers"))
    return [f"model.layers.{layer}" for layer in layers if layer not in set(dense)]


def mixture(
    part: str, n_experts: int, router: str, names: tuple[str, str, str] = (GATE, UP, DOWN)
) -> dict[str, tuple[int, ...]]:
    """Shapes of a router and of experts."""
    shapes: dict[str, tuple[int, ...]] = {f"{part}.{router}.weight": (n_experts, HIDDEN)}
    for expert in range(n_experts):
        shapes |= gated_mlp(f"{part}.experts.{expert}", INNER, names)
    return shapes


def gated_mlp(
    part: str, inner: int, names: tuple[str, str, str] = (GATE, UP, DOWN)
) -> dict[str, tuple[int, ...]]:
    gate, up, down = (f"{part}.{name}.weight" for name in names)
    return {gate: (inner, HIDDEN), up: (inner, HIDDEN), down: (HIDDEN, inner)}


def with_tensors(
    model: TinyModel, name: str, shapes: Mapping[str, tuple[int, ...]], *, dense: bool = False
) -> TinyModel:
    """The model with experts in place of the dense parts of their layers, or beside them."""
    layers = {".".join(key.split(".")[:3]) for key in shapes}
    kept = {k: x for k, x in model.tensors.items() if ".".join(k.split(".")[:3]) not in layers}
    ends = () if dense else tuple(f".mlp.{part}.weight" for part in (GATE, UP, DOWN))
    rest = {k: x for k, x in model.tensors.items() if k not in kept and not k.endswith(ends)}
    made = {key: _tensor(f"{name}/{key}", shape) for key, shape in shapes.items()}
    return replace(model, name=name, tensors={**kept, **rest, **made})


def _tensor(key: str, shape: tuple[int, ...]) -> Array:
    if key.endswith("bias"):
        return tiny.uniform(key, shape, 0.3)
    if key.endswith("norm.weight"):
        return tiny.uniform(key, shape, 0.3, 1.0)
    if key.endswith("sinks"):
        return tiny.uniform(key, shape, 1.0, 1.0)
    # Routers far apart, so that rounding seldom changes the choice of experts.
    is_router = key.endswith(
        ("gate.weight", "gate.wg.weight", "router.layer.weight", "router.weight")
    )
    return tiny.uniform(key, shape, (4.0 if is_router else 1.0) * (3.0 / shape[-1]) ** 0.5)
