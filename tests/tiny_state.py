"""Tiny random models of which some layers keep a state. No constant has the value that changes
nothing."""

from __future__ import annotations

from tests import tiny
from tests.tiny import TinyModel, uniform

MIXERS = ["conv", "full_attention", "conv", "full_attention", "conv"]


def lfm2(**overrides: object) -> TinyModel:
    """Convolutions of four taps in three of five layers; the inner size follows from three
    fields."""
    name = "tiny-lfm2"
    config: dict[str, object] = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "hidden_size": 64,
        "intermediate_size": 130,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.1,
        "block_multiple_of": 32,
        "num_hidden_layers": len(MIXERS),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": tiny.VOCAB,
        "max_position_embeddings": 512,
        "norm_eps": 1e-4,
        "rope_theta": 20000.0,
        "conv_L_cache": 4,
        "conv_bias": False,
        "layer_types": MIXERS,
        "full_attn_idxs": [i for i, mixer in enumerate(MIXERS) if mixer != "conv"],
        "tie_word_embeddings": True,
        "bos_token_id": tiny.BOS,
        "eos_token_id": tiny.EOS,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        **overrides,
    }
    hidden, heads, kv_heads, dim, inner = 64, 4, 2, 32, 96
    shapes: dict[str, tuple[int, ...]] = {"model.embedding_norm": (hidden,)}
    for layer, mixer in enumerate(MIXERS):
        part = f"model.layers.{layer}"
        shapes |= {f"{part}.operator_norm": (hidden,), f"{part}.ffn_norm": (hidden,)}
        shapes |= _mlp(f"{part}.feed_forward", hidden, inner)
        if mixer == "conv":
            shapes[f"{part}.conv.in_proj"] = (3 * hidden, hidden)
            shapes[f"{part}.conv.conv"] = (hidden, 1, 4)
            shapes[f"{part}.conv.out_proj"] = (hidden, hidden)
            continue
        shapes |= {f"{part}.self_attn.{x}_layernorm": (dim,) for x in "qk"}
        shapes |= {f"{part}.self_attn.{x}_proj": (kv_heads * dim, hidden) for x in "kv"}
        shapes[f"{part}.self_attn.q_proj"] = (heads * dim, hidden)
        shapes[f"{part}.self_attn.out_proj"] = (hidden, heads * dim)
    tensors = {f"{key}.weight": _tensor(f"{name}/{key}", shape) for key, shape in shapes.items()}
    tensors["model.embed_tokens.weight"] = uniform(f"{name}/embed", (tiny.VOCAB, hidden), 1.0)
    return TinyModel(name, config, tensors)


def lfm2_moe(**overrides: object) -> TinyModel:
    """Three of eight experts behind two dense layers."""
    name, n_experts, inner = "tiny-lfm2-moe", 8, 32
    own: dict[str, object] = {
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "intermediate_size": 96,
        "moe_intermediate_size": inner,
        "num_experts": n_experts,
        "num_experts_per_tok": 3,
        "num_dense_layers": 2,
        "norm_topk_prob": True,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.3,
    }
    model = lfm2(**(own | overrides))
    gone = ("full_attn_idxs", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier")
    gone += ("block_multiple_of",)
    config = {key: value for key, value in model.config.items() if key not in gone}
    sparse = [f"model.layers.{i}.feed_forward" for i in range(2, len(MIXERS))]
    tensors = {k: x for k, x in model.tensors.items() if not k.startswith(tuple(sparse))}
    for part in sparse:
        shapes: dict[str, tuple[int, ...]] = {}
        for expert in range(n_experts):
            shapes |= _mlp(f"{part}.experts.{expert}", 64, inner)
        tensors |= {f"{key}.weight": _tensor(f"{name}/{key}", x) for key, x in shapes.items()}
        # Far apart, so that rounding seldom changes the choice of experts.
        tensors[f"{part}.gate.weight"] = uniform(f"{name}/{part}/gate", (n_experts, 64), 0.8)
        if not config["use_expert_bias"]:
            continue
        tensors[f"{part}.expert_bias"] = uniform(f"{name}/{part}/bias", (n_experts,), 1.0)
    return TinyModel(name, config, tensors)


def _mlp(part: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{part}.w{i}": (inner, hidden) for i in (1, 3)}
    return shapes | {f"{part}.w2": (hidden, inner)}


def _tensor(name: str, shape: tuple[int, ...]) -> tiny.Array:
    """A norm, or what gives outputs of about the size of its inputs, and more."""
    if len(shape) == 1:
        return uniform(name, shape, 0.3, 1.0)
    return uniform(name, shape, 1.2 * (3.0 / shape[-1]) ** 0.5)


def lfm2_by_number(**overrides: object) -> TinyModel:
    """As older files say it: which layers attend by their numbers, and the inner size as it is."""
    older: dict[str, object] = {"layer_types": None, "block_ff_dim": 96}
    return lfm2(**(older | {"block_auto_adjust_ff_dim": False} | overrides))
