"""Tiny random Kimi Linear. No constant has the value that changes nothing."""

from __future__ import annotations

from tests import tiny
from tests.tiny import TinyModel
from tests.tiny_latent import HEADS, KEY, RANK, ROPE, VALUE
from tests.tiny_scan import Shapes, made

HIDDEN, INNER, DENSE, DIM, EXPERTS = 64, 32, 96, 32, 8
NETS: dict[str, object] = {
    "full_attn_layers": [2],
    "head_dim": DIM,
    "kda_layers": [1, 3, 4],
    "num_heads": HEADS,
    "short_conv_kernel_size": 4,
}
"""The second of four layers attends: they are counted from one."""


def kimi_linear(**overrides: object) -> TinyModel:
    """A dense layer first; two shared experts."""
    config: dict[str, object] = {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE,
        "num_hidden_layers": 4,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": 18,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-4,
        "rope_theta": 20000.0,
        "kv_lora_rank": RANK,
        "q_lora_rank": None,
        "qk_nope_head_dim": KEY,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "mla_use_nope": True,
        "linear_attn_config": NETS,
        "num_experts": EXPERTS,
        "num_experts_per_token": 3,
        "num_shared_experts": 2,
        "num_expert_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": INNER,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "moe_layer_freq": 1,
        "routed_scaling_factor": 1.7,
        "first_k_dense_replace": 1,
        "model_max_length": 512,
        "vocab_size": tiny.VOCAB,
        "tie_word_embeddings": False,
        "bos_token_id": tiny.BOS,
        "eos_token_id": tiny.EOS,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        **overrides,
    }
    shapes: Shapes = {"model.norm.weight": (HIDDEN,), "lm_head.weight": (tiny.VOCAB, HIDDEN)}
    for layer in range(4):
        part = f"model.layers.{layer}"
        shapes |= {f"{part}.{x}_layernorm.weight": (HIDDEN,) for x in ("input", "post_attention")}
        own = f"{part}.self_attn"
        shapes |= _latent(own, config["q_lora_rank"]) if layer == 1 else _net(own)
        shapes |= _mixture(f"{part}.block_sparse_moe") if layer else _mlp(f"{part}.mlp", DENSE)
    return made("tiny-kimi-linear", config, shapes, "model.embed_tokens.weight")


def _net(part: str) -> Shapes:
    inner = HEADS * DIM
    shapes: Shapes = {f"{part}.{x}_proj.weight": (inner, HIDDEN) for x in "qkv"}
    shapes |= {f"{part}.{x}_conv1d.weight": (inner, 1, 4) for x in "qkv"}
    shapes |= {f"{part}.{x}_a_proj.weight": (DIM, HIDDEN) for x in "fg"}
    shapes |= {f"{part}.{x}_b_proj.weight": (inner, DIM) for x in "fg"}
    shapes |= {f"{part}.b_proj.weight": (HEADS, HIDDEN), f"{part}.o_norm.weight": (DIM,)}
    shapes |= {f"{part}.dt_bias": (inner,), f"{part}.A_log": (1, 1, HEADS, 1)}
    return shapes | {f"{part}.o_proj.weight": (HIDDEN, inner)}


def _latent(part: str, rank: object) -> Shapes:
    shapes: Shapes = {
        f"{part}.kv_a_proj_with_mqa.weight": (RANK + ROPE, HIDDEN),
        f"{part}.kv_a_layernorm.weight": (RANK,),
        f"{part}.kv_b_proj.weight": (HEADS * (KEY + VALUE), RANK),
        f"{part}.o_proj.weight": (HIDDEN, HEADS * VALUE),
    }
    if not isinstance(rank, int):
        return shapes | {f"{part}.q_proj.weight": (HEADS * (KEY + ROPE), HIDDEN)}
    return shapes | {
        f"{part}.q_a_proj.weight": (rank, HIDDEN),
        f"{part}.q_a_layernorm.weight": (rank,),
        f"{part}.q_b_proj.weight": (HEADS * (KEY + ROPE), rank),
    }


def _mlp(
    part: str, inner: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> Shapes:
    gate, up, down = (f"{part}.{name}.weight" for name in names)
    return {gate: (inner, HIDDEN), up: (inner, HIDDEN), down: (HIDDEN, inner)}


def _mixture(part: str) -> Shapes:
    shapes: Shapes = {f"{part}.gate.weight": (EXPERTS, HIDDEN)}
    shapes[f"{part}.gate.e_score_correction_bias"] = (EXPERTS,)
    for expert in range(EXPERTS):
        shapes |= _mlp(f"{part}.experts.{expert}", INNER, ("w1", "w3", "w2"))
    return shapes | _mlp(f"{part}.shared_experts", 2 * INNER)
