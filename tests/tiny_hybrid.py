"""Tiny random models whose layers mix attention and scans in ways of their own. No constant has the
value that changes nothing."""

from __future__ import annotations

from tests import tiny
from tests.tiny import TinyModel
from tests.tiny_scan import Shapes, made, ssd_shapes

FALCON = (64, 4, 24, 2, 16)
"""Width; heads of scans, their size, groups, rows of a state."""


def falcon_h1(**overrides: object) -> TinyModel:
    """Attention and a scan in each layer; all multipliers."""
    hidden, heads, dim, groups, state = FALCON
    config: dict[str, object] = {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "hidden_size": hidden,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "mamba_d_ssm": heads * dim,
        "mamba_n_heads": heads,
        "mamba_d_head": dim,
        "mamba_n_groups": groups,
        "mamba_d_state": state,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 16,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
        "attention_bias": False,
        "mlp_bias": False,
        "projectors_bias": False,
        "rms_norm_eps": 1e-4,
        "rope_theta": 20000.0,
        "embedding_multiplier": 1.6,
        "lm_head_multiplier": 0.7,
        "key_multiplier": 0.6,
        "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.8,
        "ssm_in_multiplier": 1.3,
        "ssm_out_multiplier": 0.7,
        "ssm_multipliers": [0.8, 1.4, 0.6, 1.5, 0.9],
        "mlp_multipliers": [1.3, 0.6],
        "max_position_embeddings": 512,
        "vocab_size": tiny.VOCAB,
        "tie_word_embeddings": False,
        "bos_token_id": tiny.BOS,
        "eos_token_id": tiny.EOS,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        **overrides,
    }
    groups = int(str(config["mamba_n_groups"]))
    shapes: Shapes = {"model.final_layernorm.weight": (hidden,)}
    shapes["lm_head.weight"] = (tiny.VOCAB, hidden)
    for layer in range(3):
        part = f"model.layers.{layer}"
        shapes |= {f"{part}.{x}_layernorm.weight": (hidden,) for x in ("input", "pre_ff")}
        shapes |= ssd_shapes(f"{part}.mamba", hidden, heads, dim, groups, state)
        for name, n in (("q", 128), ("k", 64), ("v", 64)):
            shapes[f"{part}.self_attn.{name}_proj.weight"] = (n, hidden)
        shapes[f"{part}.self_attn.o_proj.weight"] = (hidden, 128)
        for name in ("gate", "up"):
            shapes[f"{part}.feed_forward.{name}_proj.weight"] = (96, hidden)
        shapes[f"{part}.feed_forward.down_proj.weight"] = (hidden, 96)
    if not config["mamba_conv_bias"]:
        shapes = {key: shape for key, shape in shapes.items() if not key.endswith("conv1d.bias")}
    if not config["mamba_rms_norm"]:
        shapes = {key: shape for key, shape in shapes.items() if "mamba.norm" not in key}
    return made("tiny-falcon-h1", config, shapes, "model.embed_tokens.weight")
