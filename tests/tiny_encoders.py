"""Tiny random encoders: names and shapes of their checkpoints. No weight has a value that changes
nothing."""

from __future__ import annotations

from collections.abc import Mapping

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
