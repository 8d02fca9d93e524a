"""Tiny random models whose layers mix attention and scans in ways of their own. No constant has the
value that changes nothing."""

from __future__ import annotations

from tests import tiny
from tests.tiny import TinyModel
from tests.tiny_scan import Shapes, made, ssd_shapes

FALCON = (64, 4, 24, 2, 16)
"""Width; heads of scans, their size, groups, rows of a state."""


def _falcon_config(overrides: dict[str, object]) -> dict[str, object]:
    hidden, heads, dim, groups, state = FALCON
    return {
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


def falcon_h1(**overrides: object) -> TinyModel:
    """Attention and a scan in each layer; all multipliers."""
    hidden, heads, dim, _, state = FALCON
    config = _falcon_config(overrides)
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


def _nemotron_config(overrides: dict[str, object]) -> dict[str, object]:
    return {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "attention_bias": False,
        "mlp_bias": False,
        "use_bias": False,
        "mamba_proj_bias": False,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "n_groups": 2,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 16,
        "use_conv_bias": True,
        "time_step_limit": [0.0, float("inf")],
        "time_step_min": 0.0,  # by which transformers bounds prompts alone
        "layer_norm_epsilon": 1e-4,
        "rescale_prenorm_residual": False,
        "num_nextn_predict_layers": 0,
        "rope_theta": 20000.0,
        "max_position_embeddings": 512,
        "vocab_size": tiny.VOCAB,
        "tie_word_embeddings": False,
        "bos_token_id": tiny.BOS,
        "eos_token_id": tiny.EOS,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        **overrides,
    }


def nemotron_h(**overrides: object) -> TinyModel:
    """A scan, an MLP, attention, another scan and MLP."""
    own = {"hybrid_override_pattern": "M-*M-", "num_hidden_layers": 5}
    config = _nemotron_config(own | overrides)
    return _nemotron("tiny-nemotron-h", config, ["mamba", "mlp", "attention", "mamba", "mlp"])


def nemotron_h_moe(**overrides: object) -> TinyModel:
    """Three of six experts, in two groups or more, and one that sees every token."""
    own: dict[str, object] = {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 64,
        "moe_latent_size": None,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.4,
    }
    config = _nemotron_config(own | overrides)
    words = config["layers_block_type"]
    assert isinstance(words, list)
    return _nemotron("tiny-nemotron-h-moe", config, words)


def _nemotron(name: str, config: dict[str, object], parts: list[str]) -> TinyModel:
    shapes: Shapes = {"backbone.norm_f.weight": (64,), "lm_head.weight": (tiny.VOCAB, 64)}
    for layer, part in enumerate(parts):
        mixer = f"backbone.layers.{layer}.mixer"
        shapes[f"backbone.layers.{layer}.norm.weight"] = (64,)
        if part in ("mamba", "linear_attention"):
            shapes |= ssd_shapes(mixer, 64, 4, 32, 2, 16)
        elif part in ("attention", "full_attention"):
            shapes |= {
                f"{mixer}.{x}_proj.weight": (n, 64) for x, n in (("q", 128), ("k", 64), ("v", 64))
            }
            shapes[f"{mixer}.o_proj.weight"] = (64, 128)
        else:
            shapes |= _ungated(mixer, 96, 64) if part == "mlp" else _mixture(mixer, config)
    if not config["use_conv_bias"]:
        shapes = {key: shape for key, shape in shapes.items() if not key.endswith("conv1d.bias")}
    return made(name, config, shapes, "backbone.embeddings.weight")


def _ungated(part: str, inner: int, width: int) -> Shapes:
    return {f"{part}.up_proj.weight": (inner, width), f"{part}.down_proj.weight": (width, inner)}


def _mixture(part: str, config: dict[str, object]) -> Shapes:
    latent = config["moe_latent_size"]
    width = latent if isinstance(latent, int) else 64
    shapes: Shapes = {f"{part}.gate.weight": (6, 64)}
    shapes[f"{part}.gate.e_score_correction_bias"] = (6,)
    for expert in range(6):
        shapes |= _ungated(f"{part}.experts.{expert}", 32, width)
    if isinstance(latent, int):
        shapes[f"{part}.fc1_latent_proj.weight"] = (latent, 64)
        shapes[f"{part}.fc2_latent_proj.weight"] = (64, latent)
    return shapes | _ungated(f"{part}.shared_experts", 64, 64)
