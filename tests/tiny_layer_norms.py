"""Tiny random models of the families with layer norms: names and shapes of their checkpoints. No
weight has a value that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.tiny import BOS, EOS, VOCAB, Array, TinyModel, uniform

HIDDEN, INNER, HEADS, KV_HEADS, DIM, LAYERS = 64, 96, 4, 2, 16, 3
Shapes = dict[str, tuple[int, ...]]
_BASE: dict[str, object] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rope_theta": 20000.0,
    "tie_word_embeddings": False,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "torch_dtype": "float32",
}


def starcoder2(**overrides: object) -> TinyModel:
    """An MLP without gate, heads wider than hidden / heads."""
    own: dict[str, object] = {"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 2e-5}
    own |= {"head_dim": 32, "sliding_window": None, "use_bias": True}
    config = _config("Starcoder2ForCausalLM", "starcoder2", **(own | overrides))
    biased = bool(config["use_bias"])
    shapes = _top("model.embed_tokens", "model.norm", "lm_head")
    for part in _layers("model.layers"):
        shapes |= _norm(f"{part}.input_layernorm") | _norm(f"{part}.post_attention_layernorm")
        shapes |= _attention(f"{part}.self_attn", 32, biased)
        shapes |= _linear(f"{part}.mlp.c_fc", INNER, HIDDEN, biased)
        shapes |= _linear(f"{part}.mlp.c_proj", HIDDEN, INNER, biased)
    return _model(config, shapes)


def cohere(**overrides: object) -> TinyModel:
    """No biases of norms, scaled logits, tied head."""
    own: dict[str, object] = {"logit_scale": 0.3, "head_dim": 32, "tie_word_embeddings": True}
    return _cohere("CohereForCausalLM", "cohere", **(own | overrides))


def cohere2(**overrides: object) -> TinyModel:
    """The last of four layers sees everything and has no rope."""
    own: dict[str, object] = {"logit_scale": 0.3, "sliding_window": 8, "tie_word_embeddings": True}
    own |= {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
    own |= {"head_dim": DIM, "num_hidden_layers": 4}
    return _cohere("Cohere2ForCausalLM", "cohere2", **(own | overrides))


def _cohere(architecture: str, kind: str, **own: object) -> TinyModel:
    config = _config(architecture, kind, hidden_act="silu", layer_norm_eps=2e-5, **own)
    dim, biased = config["head_dim"], bool(config.get("attention_bias"))
    n_layers = config["num_hidden_layers"]
    assert isinstance(dim, int) and isinstance(n_layers, int)
    shapes = _top("model.embed_tokens", "model.norm", "lm_head")
    for part in _layers("model.layers", n_layers):
        shapes |= _norm(f"{part}.input_layernorm")
        shapes |= _attention(f"{part}.self_attn", dim, biased) | _gated(f"{part}.mlp")
    kept = {name: shape for name, shape in shapes.items() if not name.endswith("norm.bias")}
    return _model(config, kept)


def stablelm(**overrides: object) -> TinyModel:
    """Half of each head turns."""
    own: dict[str, object] = {"hidden_act": "silu", "layer_norm_eps": 2e-5, "use_qkv_bias": True}
    own |= {"partial_rotary_factor": 0.5, "use_parallel_residual": False}
    config = _config("StableLmForCausalLM", "stablelm", **(own | overrides))
    shapes = _top("model.embed_tokens", "model.norm", "lm_head")
    for part in _layers("model.layers"):
        shapes |= _norm(f"{part}.input_layernorm") | _norm(f"{part}.post_attention_layernorm")
        shapes |= _attention(f"{part}.self_attn", DIM, biased=True) | _gated(f"{part}.mlp")
        del shapes[f"{part}.self_attn.o_proj.bias"]
    return _model(config, shapes)


def phi(**overrides: object) -> TinyModel:
    """A quarter of each head turns; the head has a bias."""
    own: dict[str, object] = {"hidden_act": "gelu_new", "layer_norm_eps": 2e-5}
    own |= {"partial_rotary_factor": 0.25, "qk_layernorm": False, "head_dim": DIM}
    config = _config("PhiForCausalLM", "phi", **(own | overrides))
    shapes = _top("model.embed_tokens", "model.final_layernorm", "lm_head")
    shapes["lm_head.bias"] = (VOCAB,)
    for part in _layers("model.layers"):
        shapes |= _norm(f"{part}.input_layernorm")
        attention = _attention(f"{part}.self_attn", DIM, biased=True)
        shapes |= {k.replace("o_proj", "dense"): shape for k, shape in attention.items()}
        shapes |= _linear(f"{part}.mlp.fc1", INNER, HIDDEN)
        shapes |= _linear(f"{part}.mlp.fc2", HIDDEN, INNER)
    return _model(config, shapes)


def gpt_neox(**overrides: object) -> TinyModel:
    """A quarter of each head turns; two norms read the same rows."""
    own: dict[str, object] = {"hidden_act": "gelu", "layer_norm_eps": 2e-5, "rotary_pct": 0.25}
    own |= {"rotary_emb_base": 20000, "use_parallel_residual": True, "attention_bias": True}
    config = _config("GPTNeoXForCausalLM", "gpt_neox", **(own | overrides))
    for name in ("rope_theta", "num_key_value_heads"):
        del config[name]
    biased = bool(config["attention_bias"])
    shapes = _top("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out")
    for part in _layers("gpt_neox.layers"):
        shapes |= _norm(f"{part}.input_layernorm") | _norm(f"{part}.post_attention_layernorm")
        shapes |= _linear(f"{part}.attention.query_key_value", 3 * HIDDEN, HIDDEN, biased)
        shapes |= _linear(f"{part}.attention.dense", HIDDEN, HIDDEN, biased)
        shapes |= _linear(f"{part}.mlp.dense_h_to_4h", INNER, HIDDEN)
        shapes |= _linear(f"{part}.mlp.dense_4h_to_h", HIDDEN, INNER)
    return _model(config, shapes)


def falcon(**overrides: object) -> TinyModel:
    """One key for all queries, one norm, no biases, tied head."""
    own: dict[str, object] = {"multi_query": True, "new_decoder_architecture": False}
    return _falcon(1, **(own | overrides))


def falcon_two_norms(**overrides: object) -> TinyModel:
    """A key for two queries, biases."""
    own: dict[str, object] = {"multi_query": True, "new_decoder_architecture": True, "bias": True}
    return _falcon(KV_HEADS, num_kv_heads=KV_HEADS, **(own | overrides))


def falcon_heads() -> TinyModel:
    """A key for each query."""
    return _falcon(HEADS, multi_query=False, new_decoder_architecture=False)


def _falcon(kv_heads: int, **own: object) -> TinyModel:
    config: dict[str, object] = {"activation": "gelu", "layer_norm_epsilon": 2e-5, "alibi": False}
    config |= {"parallel_attn": True, "ffn_hidden_size": INNER, "bias": False}
    config = _config("FalconForCausalLM", "falcon", tie_word_embeddings=True, **(config | own))
    for name in ("intermediate_size", "num_key_value_heads"):
        del config[name]
    biased = bool(config["bias"])
    shapes = _top("transformer.word_embeddings", "transformer.ln_f", "lm_head")
    n_norms = config.get("num_ln_in_parallel_attn", 1 + bool(config["new_decoder_architecture"]))
    norms = ("ln_attn", "ln_mlp") if n_norms == 2 else ("input_layernorm",)
    for part in _layers("transformer.h"):
        for norm in norms:
            shapes |= _norm(f"{part}.{norm}")
        qkv = (HEADS + 2 * kv_heads) * DIM
        shapes |= _linear(f"{part}.self_attention.query_key_value", qkv, HIDDEN, biased)
        shapes |= _linear(f"{part}.self_attention.dense", HIDDEN, HIDDEN, biased)
        shapes |= _linear(f"{part}.mlp.dense_h_to_4h", INNER, HIDDEN, biased)
        shapes |= _linear(f"{part}.mlp.dense_4h_to_h", HIDDEN, INNER, biased)
    return _model(config, shapes)


_GPT: dict[str, object] = {
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_inner": INNER,
    "n_positions": 512,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 2e-5,
}


def gptj(**overrides: object) -> TinyModel:
    """Half of each head turns, neighbours; the head has a bias."""
    config = _gpt("GPTJForCausalLM", "gptj", rotary_dim=8, **overrides)
    shapes = _top("transformer.wte", "transformer.ln_f", "lm_head")
    shapes["lm_head.bias"] = (VOCAB,)
    for part in _layers("transformer.h"):
        shapes |= _norm(f"{part}.ln_1")
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{part}.attn.{name}", HIDDEN, HIDDEN, biased=False)
        shapes |= _linear(f"{part}.mlp.fc_in", INNER, HIDDEN)
        shapes |= _linear(f"{part}.mlp.fc_out", HIDDEN, INNER)
    return _model(config, shapes)


def gpt2(**overrides: object) -> TinyModel:
    """Matrices with their outputs as columns, tied head."""
    config = _gpt("GPT2LMHeadModel", "gpt2", tie_word_embeddings=True, **overrides)
    shapes = _top("transformer.wte", "transformer.ln_f", "lm_head")
    shapes["transformer.wpe.weight"] = (512, HIDDEN)
    for part in _layers("transformer.h"):
        shapes |= _norm(f"{part}.ln_1") | _norm(f"{part}.ln_2")
        sizes = {"attn.c_attn": (HIDDEN, 3 * HIDDEN), "attn.c_proj": (HIDDEN, HIDDEN)}
        sizes |= {"mlp.c_fc": (HIDDEN, INNER), "mlp.c_proj": (INNER, HIDDEN)}
        for name, (k, n) in sizes.items():
            shapes |= {f"{part}.{name}.weight": (k, n), f"{part}.{name}.bias": (n,)}
    return _model(config, shapes)


def gpt2_bare(**overrides: object) -> TinyModel:
    """Names as the first checkpoints have them."""
    model = gpt2(**overrides)
    tensors = {name.removeprefix("transformer."): x for name, x in model.tensors.items()}
    return replace(model, name="tiny-gpt2-bare", tensors=tensors)


def _gpt(architecture: str, kind: str, **own: object) -> dict[str, object]:
    shared = ("vocab_size", "tie_word_embeddings", "bos_token_id", "eos_token_id", "torch_dtype")
    named = {"architectures": [architecture], "model_type": kind}
    return {**{name: _BASE[name] for name in shared}, **_GPT, **named, **own}


def _config(architecture: str, kind: str, **own: object) -> dict[str, object]:
    return {**_BASE, "architectures": [architecture], "model_type": kind, **own}


def _layers(prefix: str, n_layers: int = LAYERS) -> list[str]:
    return [f"{prefix}.{layer}" for layer in range(n_layers)]


def _top(embed: str, norm: str, head: str) -> Shapes:
    table = (VOCAB, HIDDEN)
    return {f"{embed}.weight": table, f"{head}.weight": table, **_norm(norm)}


def _norm(name: str) -> Shapes:
    return {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}


def _linear(name: str, n: int, k: int, biased: bool = True) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (n, k)}
    return shapes | ({f"{name}.bias": (n,)} if biased else {})


def _gated(part: str) -> Shapes:
    sizes = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
    return {f"{part}.{name}_proj.weight": shape for name, shape in sizes.items()}


def _attention(part: str, dim: int, biased: bool) -> Shapes:
    shapes = _linear(f"{part}.q_proj", HEADS * dim, HIDDEN, biased)
    for letter in "kv":
        shapes |= _linear(f"{part}.{letter}_proj", KV_HEADS * dim, HIDDEN, biased)
    return shapes | _linear(f"{part}.o_proj", HIDDEN, HEADS * dim, biased)


def _model(config: Mapping[str, object], shapes: Shapes) -> TinyModel:
    """Outputs of matrices are half again as large as their inputs, logits three times."""
    name = f"tiny-{config['model_type']}"
    top = [tensor for tensor, shape in shapes.items() if shape[0] == VOCAB and len(shape) == 2]
    if config["tie_word_embeddings"]:
        shapes = {tensor: shape for tensor, shape in shapes.items() if tensor not in top[1:]}
    gains = dict(zip(top, (HIDDEN**0.5 / 3**0.5, 3.0), strict=False))
    return TinyModel(
        name,
        config,
        {
            tensor: _values(f"{name}/{tensor}", shape, gains.get(tensor, 1.5))
            for tensor, shape in shapes.items()
        },
    )


def _values(name: str, shape: tuple[int, ...], gain: float) -> Array:
    if len(shape) == 1:
        return uniform(name, shape, 0.3, 1.0 if name.endswith("weight") else 0.0)
    return uniform(name, shape, gain * (3.0 / shape[-1]) ** 0.5)
