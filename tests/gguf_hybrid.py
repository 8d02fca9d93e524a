"""What llama.cpp's converter makes of Falcon-H1, whose multipliers are in its matrices, and of
Nemotron-H."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests import gguf_scan
from tests.gguf_scan import Array, Config, number

LAYER = {
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    **{f"mixer.{letter}_proj": f"attn_{letter}" for letter in "qkv"},
    "mixer.o_proj": "attn_output",
    "mixer.gate": "ffn_gate_inp",
    **{f"mixer.{part}_proj": f"ffn_{part}" for part in ("up", "down")},
    **{f"mixer.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("up", "down")},
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
}
BARE = {
    "pre_ff_layernorm.weight": "ffn_norm",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
}
"""Names without a kind at their end."""


def arch(config: Config) -> str:
    """Of Nemotron-H."""
    return "nemotron_h_moe" if "num_experts_per_tok" in config else "nemotron_h"


def nemotron_fields(config: Config) -> dict[str, object]:
    """Which part a layer has follows from its KV heads and its inner size."""
    parts = [*_parts(config), *["drafts"] * _drafts(config)]
    is_sparse, kv = arch(config) == "nemotron_h_moe", config["num_key_value_heads"]
    inner = config["moe_intermediate_size" if is_sparse else "intermediate_size"]
    attends, has_mlp = ("attention", "drafts"), ("moe" if is_sparse else "mlp", "drafts")
    fields: dict[str, object] = {
        **gguf_scan.scan_fields(config),
        "block_count": len(parts),
        "ssm.inner_size": number(config, "mamba_num_heads") * number(config, "mamba_head_dim"),
        "attention.head_count_kv": [kv if part in attends else 0 for part in parts],
        "feed_forward_length": [inner if part in has_mlp else 0 for part in parts],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "rope.scaling.finetuned": False,
        "rope.dimension_count": 16,
        "context_length": 1 << 20,
    }
    if not is_sparse:
        return fields
    return fields | {
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_weights_norm": config["norm_topk_prob"],
        "moe_latent_size": config["moe_latent_size"],
    }


def _parts(config: Config) -> list[str]:
    if "layers_block_type" not in config:
        known = {"M": "mamba", "*": "attention", "-": "mlp"}
        return [known[letter] for letter in str(config["hybrid_override_pattern"])]
    listed = config["layers_block_type"]
    assert isinstance(listed, list)
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    return [names.get(str(x), str(x)) for x in listed]


def _drafts(config: Config) -> int:
    return number(config, "num_nextn_predict_layers")


def multiplied(tensors: Mapping[str, Array], config: Config, power: int = 1) -> Mapping[str, Array]:
    """Falcon-H1's tensors times all that stands before, in and behind them; with a ``power`` of -1
    divided by it."""
    if config["model_type"] != "falcon_h1":
        return tensors
    return {name: x * _factor(name, config) ** power for name, x in tensors.items()}


def _factor(name: str, config: Config) -> Array:
    """Of a tensor, or of each of its rows."""
    said = {key: x for key, x in config.items() if isinstance(x, float)}
    mlp = config["mlp_multipliers"] or [1.0, 1.0]
    assert isinstance(mlp, list)
    rows = said["attention_in_multiplier"]
    factors = {
        "model.embed_tokens": said["embedding_multiplier"],
        "lm_head": said["lm_head_multiplier"],
        "self_attn.q_proj": rows,
        "self_attn.k_proj": rows * said["key_multiplier"],
        "self_attn.v_proj": rows,
        "self_attn.o_proj": said["attention_out_multiplier"],
        "feed_forward.gate_proj": mlp[0],
        "feed_forward.down_proj": mlp[1],
        "mamba.out_proj": said["ssm_out_multiplier"],
    }
    if name.endswith("mamba.in_proj.weight"):
        return _of_scan(config) * np.float32(said["ssm_in_multiplier"])
    stem = name.removesuffix(".weight")
    factor = next((x for part, x in factors.items() if stem.endswith(part)), 1.0)
    return np.asarray(factor, np.float32)


def _of_scan(config: Config) -> Array:
    """[rows, 1] of what a scan reads: gate, x, B, C, steps."""
    inner, heads = number(config, "mamba_d_ssm"), number(config, "mamba_n_heads")
    vectors = number(config, "mamba_n_groups") * number(config, "mamba_d_state")
    each = config["ssm_multipliers"] or [1.0] * 5
    return np.repeat(np.array(each, np.float32), [inner, inner, vectors, vectors, heads])[:, None]
