"""Tiny random models of the families with experts, as ``tests.tiny`` has them of the first
families. No constant has the value that changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tests import tiny, tiny_kin
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
    """Sinks; two layers of four slide; gate and up of all experts in turns, input by output."""
    own: dict[str, object] = {
        "num_hidden_layers": 4,
        "intermediate_size": INNER,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
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


def with_tensors(model: TinyModel, name: str, shapes: Mapping[str, tuple[int, ...]]) -> TinyModel:
    """The model with experts in place of the dense parts of their layers."""
    layers = {".".join(key.split(".")[:3]) for key in shapes}
    kept = {k: x for k, x in model.tensors.items() if ".".join(k.split(".")[:3]) not in layers}
    ends = tuple(f".mlp.{part}.weight" for part in (GATE, UP, DOWN))
    rest = {k: x for k, x in model.tensors.items() if k not in kept and not k.endswith(ends)}
    made = {key: _tensor(f"{name}/{key}", shape) for key, shape in shapes.items()}
    return replace(model, name=name, tensors={**kept, **rest, **made})


def _tensor(key: str, shape: tuple[int, ...]) -> Array:
    if key.endswith("bias"):
        return tiny.uniform(key, shape, 0.3)
    if key.endswith("sinks"):
        return tiny.uniform(key, shape, 1.0, 1.0)
    # Routers far apart, so that rounding seldom changes the choice of experts.
    is_router = key.endswith(("gate.weight", "router.layer.weight", "router.weight"))
    return tiny.uniform(key, shape, (4.0 if is_router else 1.0) * (3.0 / shape[-1]) ** 0.5)
