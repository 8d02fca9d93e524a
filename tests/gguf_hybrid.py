"""What llama.cpp's converter makes of Falcon-H1: its multipliers are in its matrices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.gguf_scan import Array, Config, number

LAYER = {
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
}
BARE = {"pre_ff_layernorm.weight": "ffn_norm"}
"""Names without a kind at their end."""


def multiplied(
    tensors: Mapping[str, Array], config: Config, power: int = 1
) -> Mapping[str, Array]:
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
    return np.float32(next((x for part, x in factors.items() if stem.endswith(part)), 1.0))


def _of_scan(config: Config) -> Array:
    """[rows, 1] of what a scan reads: gate, x, B, C, steps."""
    inner, heads = number(config, "mamba_d_ssm"), number(config, "mamba_n_heads")
    vectors = number(config, "mamba_n_groups") * number(config, "mamba_d_state")
    each = config["ssm_multipliers"] or [1.0] * 5
    return np.repeat(np.array(each, np.float32), [inner, inner, vectors, vectors, heads])[:, None]
