"""Tiny random Llama 4. No constant has the value that changes nothing."""

from __future__ import annotations

from dataclasses import replace

from tests import tiny
from tests.tiny import TinyModel
from tests.tiny_moe import HIDDEN, INNER

EXPERTS, DENSE = 6, 96
_KEPT = ("self_attn", "input_layernorm", "post_attention_layernorm")


def llama4(**overrides: object) -> TinyModel:
    """Chunks of 8 tokens but in the second of four layers, which has no rope; experts in every
    other one."""
    own: dict[str, object] = {
        "num_hidden_layers": 4,
        "intermediate_size": INNER,
        "intermediate_size_mlp": DENSE,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "moe_layers": [1, 3],
        "no_rope_layers": [1, 0, 1, 1],
        "no_rope_layer_interval": 4,
        "layer_types": [
            *("chunked_attention", "full_attention"),
            *("chunked_attention", "chunked_attention"),
        ],
        "attention_chunk_size": 8,
        "attn_temperature_tuning": True,
        "attn_scale": 0.3,
        "floor_scale": 4,
        "use_qk_norm": True,
        "pad_token_id": 2,
    }
    return _model("tiny-llama4", own | overrides)


def llama4_long(**overrides: object) -> TinyModel:
    """As GGUF files can say it: chunks and steps of 8,192 tokens, experts in all layers."""
    own: dict[str, object] = {
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "intermediate_size": INNER,
        "intermediate_size_mlp": DENSE,
        "num_hidden_layers": 4,
    }
    return _model("tiny-llama4-long", own | overrides)


def _model(name: str, own: dict[str, object]) -> TinyModel:
    model = tiny.llama(name, **own)
    names = {"architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text"}
    config = {key: x for key, x in model.config.items() if key != "mlp_bias"} | names
    tensors = {
        key: x
        for key, x in model.tensors.items()
        if ".layers." not in key or any(f".{part}." in key for part in _KEPT)
    }
    listed, step = config.get("moe_layers"), model.size("interleave_moe_layer_step")
    for layer in range(model.size("num_hidden_layers")):
        sparse = layer in listed if isinstance(listed, list) else (layer + 1) % step == 0
        part = f"model.layers.{layer}.feed_forward"
        shapes = _mixture(part) if sparse else _mlp(part, DENSE)
        tensors |= {key: _tensor(f"{name}/{key}", shape) for key, shape in shapes.items()}
    return replace(model, name=name, config=config, tensors=tensors)


def _mlp(part: str, inner: int) -> dict[str, tuple[int, ...]]:
    gate, up, down = (f"{part}.{x}_proj.weight" for x in ("gate", "up", "down"))
    return {gate: (inner, HIDDEN), up: (inner, HIDDEN), down: (HIDDEN, inner)}


def _mixture(part: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{part}.router.weight": (EXPERTS, HIDDEN),
        f"{part}.experts.gate_up_proj": (EXPERTS, HIDDEN, 2 * INNER),
        f"{part}.experts.down_proj": (EXPERTS, INNER, HIDDEN),
        **_mlp(f"{part}.shared_expert", INNER),
    }


def _tensor(key: str, shape: tuple[int, ...]) -> tiny.Array:
    """Experts lie input by output. Routers far apart: rounding seldom changes the choice."""
    n_in = shape[1] if len(shape) == 3 else shape[-1]
    gain = 4.0 if key.endswith("router.weight") else 1.0
    return tiny.uniform(key, shape, gain * (3.0 / n_in) ** 0.5)


def as_seeing(model: TinyModel) -> TinyModel:
    """The same in a folder of a model that sees, whose tower nothing reads."""
    head = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4"}
    config = {**head, "text_config": model.config, "vision_config": {"model_type": "vision"}}
    tensors = {f"language_model.{key}": x for key, x in model.tensors.items()}
    tower = {"vision_model.class_embedding": tiny.uniform("tower", (4,), 1.0)}
    return replace(model, config=config, tensors={**tensors, **tower})
