"""Tiny random models with latent attention. No constant has the value that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests import tiny, tiny_kin
from tests.tiny import TinyModel
from tests.tiny_moe import HIDDEN, INNER, gated_mlp, mixture, sparse_layers, with_tensors

HEADS, RANK, ROPE, KEY, VALUE, QUERY_RANK = 4, 64, 16, 32, 24, 32
YARN: Mapping[str, object] = {
    "type": "yarn",
    "factor": 4.0,
    "beta_fast": 3.0,
    "beta_slow": 0.4,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
    "original_max_position_embeddings": 32,
}
_OWN: dict[str, object] = {
    "num_key_value_heads": HEADS,
    "kv_lora_rank": RANK,
    "q_lora_rank": None,
    "qk_nope_head_dim": KEY,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": INNER,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
    "attention_bias": False,
    "rope_scaling": YARN,
    "max_position_embeddings": 128,
}


def deepseek_v2(**overrides: object) -> TinyModel:
    """Queries from the rows themselves, groups by their best expert."""
    own = {**_OWN, "topk_method": "group_limited_greedy", "norm_topk_prob": False}
    return _deepseek("tiny-deepseek-v2", "DeepseekV2", "deepseek_v2", {**own, **overrides})


def deepseek_v3(**overrides: object) -> TinyModel:
    """Queries by way of a latent of their own, groups by their best two experts."""
    own = {**_OWN, "q_lora_rank": QUERY_RANK, "norm_topk_prob": True, "rope_interleave": True}
    own |= {"num_nextn_predict_layers": 0}
    return _deepseek("tiny-deepseek-v3", "DeepseekV3", "deepseek_v3", {**own, **overrides})


def glm4_moe_lite(**overrides: object) -> TinyModel:
    """Its layers say whether they have experts."""
    kinds = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
    own = {**_OWN, "q_lora_rank": QUERY_RANK, "norm_topk_prob": True, "rope_interleave": True}
    own |= {"num_nextn_predict_layers": 0, "rope_scaling": None, "rope_theta": 20000.0}
    return _deepseek("tiny-glm-flash", "Glm4MoeLite", "glm4_moe_lite", own | kinds | overrides)


def _deepseek(name: str, prefix: str, kind: str, own: dict[str, object]) -> TinyModel:
    model = tiny.llama(name, **own)
    names = {"architectures": [f"{prefix}ForCausalLM"], "model_type": kind}
    config = {k: x for k, x in model.config.items() if k != "head_dim"} | names
    model = tiny_kin.without(replace(model, config=config), *_OF_HEADS)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in sparse_layers(model):
        shapes |= _attention(f"{layer}.self_attn", model)
    model = with_tensors(model, name, shapes, dense=True)
    shapes = {}
    for layer in sparse_layers(model)[model.size("first_k_dense_replace") :]:
        shapes |= mixture(f"{layer}.mlp", 8, "gate")
        shapes |= gated_mlp(f"{layer}.mlp.shared_experts", 2 * INNER)
        if kind != "deepseek_v2":
            shapes[f"{layer}.mlp.gate.e_score_correction_bias"] = (8,)
    return with_tensors(model, name, shapes)


_OF_HEADS = tuple(f"self_attn.{letter}_proj.weight" for letter in "qkvo")


def _attention(part: str, model: TinyModel) -> dict[str, tuple[int, ...]]:
    query = HEADS * (KEY + ROPE)
    shapes: dict[str, tuple[int, ...]] = {
        f"{part}.kv_a_proj_with_mqa.weight": (RANK + ROPE, HIDDEN),
        f"{part}.kv_a_layernorm.weight": (RANK,),
        f"{part}.kv_b_proj.weight": (HEADS * (KEY + VALUE), RANK),
        f"{part}.o_proj.weight": (HIDDEN, HEADS * VALUE),
    }
    rank = model.config["q_lora_rank"]
    if rank is None:
        return {**shapes, f"{part}.q_proj.weight": (query, HIDDEN)}
    assert isinstance(rank, int)
    return {
        **shapes,
        f"{part}.q_a_proj.weight": (rank, HIDDEN),
        f"{part}.q_a_layernorm.weight": (rank,),
        f"{part}.q_b_proj.weight": (query, rank),
    }
