"""Tiny random encoders: names and shapes of their checkpoints. No weight has a value that changes
nothing."""

from __future__ import annotations

from collections.abc import Mapping

from tests import tiny
from tests.tiny import BOS, EOS, VOCAB, TinyModel, uniform

HIDDEN, INNER, HEADS, LAYERS, LENGTH = 64, 96, 4, 3, 128
_BASE: dict[str, object] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": LENGTH,
    "type_vocab_size": 2,
    "layer_norm_eps": 2e-5,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "torch_dtype": "float32",
}
Shapes = dict[str, tuple[int, ...]]


def bert(**overrides: object) -> TinyModel:
    """With a pooler, which no vector reads."""
    config = {**_BASE, "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu"}
    shapes = _table("word", VOCAB) | _table("token_type", 2) | _table("position", LENGTH)
    shapes |= _norm("embeddings.LayerNorm") | _linear("pooler.dense", HIDDEN, HIDDEN)
    for layer in range(LAYERS):
        part = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            shapes |= _linear(f"{part}.attention.self.{name}", HIDDEN, HIDDEN)
        shapes |= _linear(f"{part}.attention.output.dense", HIDDEN, HIDDEN)
        shapes |= _norm(f"{part}.attention.output.LayerNorm") | _norm(f"{part}.output.LayerNorm")
        shapes |= _linear(f"{part}.intermediate.dense", INNER, HIDDEN)
        shapes |= _linear(f"{part}.output.dense", HIDDEN, INNER)
    return _model(config | overrides, shapes)


def nomic_bert(**overrides: object) -> TinyModel:
    """Rope and a gated MLP; q, k and v in one tensor."""
    own: dict[str, object] = {"architectures": ["NomicBertModel"], "model_type": "nomic_bert"}
    config = {
        **_BASE,
        **own,
        "hidden_act": "silu",
        "rope_theta": 500.0,
        "head_dim": HIDDEN // HEADS,
    }
    shapes = _table("word", VOCAB) | _table("token_type", 2) | _norm("emb_ln")
    for layer in range(LAYERS):
        part = f"encoder.layers.{layer}"
        sizes = {"attn.Wqkv": (3 * HIDDEN, HIDDEN), "attn.out_proj": (HIDDEN, HIDDEN)}
        sizes |= {"mlp.fc11": (INNER, HIDDEN), "mlp.fc12": (INNER, HIDDEN)}
        sizes |= {"mlp.fc2": (HIDDEN, INNER)}
        shapes |= {f"{part}.{name}.weight": shape for name, shape in sizes.items()}
        shapes |= _norm(f"{part}.norm1") | _norm(f"{part}.norm2")
    return _model(config | overrides, shapes)


def roberta(**overrides: object) -> TinyModel:
    """Positions from the third row of their table on, tokens of one type."""
    own: dict[str, object] = {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}
    own |= {"max_position_embeddings": LENGTH + 3, "pad_token_id": 2, "type_vocab_size": 1}
    model, name = bert(**own), "embeddings.position_embeddings.weight"
    tables = _table("token_type", 1) | _table("position", LENGTH + 3)
    made = _model(model.config | overrides, {x: y.shape for x, y in model.tensors.items()} | tables)
    assert made.tensors[name].shape == (LENGTH + 3, HIDDEN)
    return made


def modern_bert(**overrides: object) -> TinyModel:
    """Norms before the parts but the first, windows of 4 on both sides, fused gates."""
    own: dict[str, object] = {
        "architectures": ["ModernBertModel"],
        "model_type": "modernbert",
        "hidden_activation": "gelu",
        "norm_eps": 2e-5,
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 5000.0,
        "local_rope_theta": 200.0,
    }
    config = {**_BASE, **own}
    for name in ("type_vocab_size", "layer_norm_eps"):
        del config[name]
    shapes: Shapes = {"embeddings.tok_embeddings.weight": (VOCAB, HIDDEN)}
    norms = ["embeddings.norm", "final_norm"]
    for layer in range(LAYERS):
        part = f"layers.{layer}"
        norms += [f"{part}.mlp_norm"] + [f"{part}.attn_norm"] * bool(layer)
        sizes = {"attn.Wqkv": (3 * HIDDEN, HIDDEN), "attn.Wo": (HIDDEN, HIDDEN)}
        sizes |= {"mlp.Wi": (2 * INNER, HIDDEN), "mlp.Wo": (HIDDEN, INNER)}
        shapes |= {f"{part}.{name}.weight": shape for name, shape in sizes.items()}
    shapes |= {f"{name}.weight": (HIDDEN,) for name in norms}
    return _model(config | overrides, shapes)


def jina_v2(**overrides: object) -> TinyModel:
    """ALiBi in place of positions, and gate and up in one tensor."""
    own: dict[str, object] = {"architectures": ["JinaBertForMaskedLM"], "model_type": "bert"}
    own |= {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    shapes = _table("word", VOCAB) | _table("token_type", 2) | _norm("embeddings.LayerNorm")
    shapes |= _linear("pooler.dense", HIDDEN, HIDDEN)
    for layer in range(LAYERS):
        part = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            shapes |= _linear(f"{part}.attention.self.{name}", HIDDEN, HIDDEN)
        shapes |= _linear(f"{part}.attention.output.dense", HIDDEN, HIDDEN)
        shapes |= _norm(f"{part}.attention.output.LayerNorm") | _norm(f"{part}.mlp.layernorm")
        shapes |= {f"{part}.mlp.gated_layers.weight": (2 * INNER, HIDDEN)}
        shapes |= _linear(f"{part}.mlp.wo", HIDDEN, INNER)
    return _model(_BASE | own | overrides, shapes)


def jina_v2_code(**overrides: object) -> TinyModel:
    """The same with norms of queries and keys, and two of what attention adds."""
    names = {"mlp.gated_layers": "mlp.up_gated_layer", "mlp.wo": "mlp.down_layer"}
    names |= {"mlp.layernorm": "layer_norm_2"}
    shapes: Shapes = {}
    for name, x in jina_v2().tensors.items():
        before = next((each for each in names if each in name), "")
        shapes[name.replace(before, names[before]) if before else name] = x.shape
    for layer in range(LAYERS):
        part = f"encoder.layer.{layer}"
        shapes |= _norm(f"{part}.layer_norm_1")
        shapes |= _norm(f"{part}.attention.self.layer_norm_q")
        shapes |= _norm(f"{part}.attention.self.layer_norm_k")
    return _model(jina_v2(**overrides).config, shapes)


def jina_v3(**overrides: object) -> TinyModel:
    """Rope, biases everywhere; q, k and v in one tensor."""
    shapes = _table("word", VOCAB) | _table("token_type", 1) | _norm("emb_ln")
    shapes |= _linear("pooler.dense", HIDDEN, HIDDEN)
    for layer in range(LAYERS):
        part = f"encoder.layers.{layer}"
        shapes |= _linear(f"{part}.mixer.Wqkv", 3 * HIDDEN, HIDDEN)
        shapes |= _linear(f"{part}.mixer.out_proj", HIDDEN, HIDDEN)
        shapes |= _linear(f"{part}.mlp.fc1", INNER, HIDDEN)
        shapes |= _linear(f"{part}.mlp.fc2", HIDDEN, INNER)
        shapes |= _norm(f"{part}.norm1") | _norm(f"{part}.norm2")
    return _model({**_jina(), **overrides}, shapes)


def jina_v3_saved(**overrides: object) -> TinyModel:
    """As transformers saves it."""
    shapes = _table("word", VOCAB) | _table("token_type", 1) | _norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        part = f"layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes |= _linear(f"{part}.self_attn.{name}", HIDDEN, HIDDEN)
        shapes |= _linear(f"{part}.mlp.fc1", INNER, HIDDEN)
        shapes |= _linear(f"{part}.mlp.fc2", HIDDEN, INNER)
        shapes |= _norm(f"{part}.post_attention_layernorm") | _norm(f"{part}.post_mlp_layernorm")
    return _model({**_jina(), **overrides}, shapes)


def _jina() -> dict[str, object]:
    return {
        **_BASE,
        "architectures": ["JinaEmbeddingsV3Model"],
        "model_type": "jina_embeddings_v3",
        "hidden_act": "gelu",
        "rope_theta": 300.0,
        "type_vocab_size": 1,
    }


def gemma_embedding(**overrides: object) -> TinyModel:
    """Gemma 3 that sees both sides; its tensors lack the name of the model with a head."""
    own: dict[str, object] = {"architectures": ["Gemma3TextModel"], "sliding_window": 8}
    own |= {"use_bidirectional_attention": True, "attn_logit_softcapping": None}
    own |= {"final_logit_softcapping": None, "max_position_embeddings": LENGTH}
    own |= {"query_pre_attn_scalar": 32}
    model = tiny.gemma3(**(own | overrides))
    tensors = {name.removeprefix("model."): x for name, x in model.tensors.items()}
    return TinyModel("tiny-gemma-embedding", model.config, tensors)


def _table(kind: str, rows: int) -> Shapes:
    return {f"embeddings.{kind}_embeddings.weight": (rows, HIDDEN)}


def _norm(name: str) -> Shapes:
    return {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}


def _linear(name: str, n: int, k: int) -> Shapes:
    return {f"{name}.weight": (n, k), f"{name}.bias": (n,)}


def _model(config: Mapping[str, object], shapes: Shapes) -> TinyModel:
    name = f"tiny-{config['model_type']}"
    tensors = {}
    for tensor, shape in shapes.items():
        if len(shape) == 1:
            middle = 1.0 if tensor.endswith("weight") else 0.0
            tensors[tensor] = uniform(f"{name}/{tensor}", shape, 0.3, middle)
        else:
            reach = 1.5 * (3.0 / shape[-1]) ** 0.5
            tensors[tensor] = uniform(f"{name}/{tensor}", shape, reach)
    return TinyModel(name, config, tensors)
