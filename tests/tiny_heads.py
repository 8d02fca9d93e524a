"""Tiny models with heads for labels behind a dense layer, and folders with dense layers behind the
pooling."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import processors

from tests import tiny, tiny_encoders
from tests.gguf_writer import write_safetensors
from tests.tiny import BOS, EOS, SPECIAL, TinyModel, uniform

HIDDEN = tiny_encoders.HIDDEN


def _with_head(model: TinyModel, prefix: str, parts: Mapping[str, tuple[int, ...]]) -> TinyModel:
    """``prefix`` before the tensors of the trunk."""
    trunk = {f"{prefix}{name}": x for name, x in model.tensors.items()}
    head = {
        name: uniform(f"head/{name}", shape, 0.5, 1.0 if name.endswith("norm.weight") else 0.0)
        for name, shape in parts.items()
    }
    return replace(model, tensors=trunk | head)


def _linear(name: str, n: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (n, HIDDEN), f"{name}.bias": (n,)}


def _labels(n: int, architecture: str) -> dict[str, object]:
    named = {str(i): f"label {i}" for i in range(n)}
    return {
        "architectures": [architecture],
        "id2label": named,
        "label2id": {name: int(i) for i, name in named.items()},
    }


def bert(n: int = 1) -> TinyModel:
    model = tiny_encoders.bert(**_labels(n, "BertForSequenceClassification"))
    return _with_head(model, "bert.", _linear("classifier", n))


def roberta(n: int = 1) -> TinyModel:
    model = tiny_encoders.roberta(**_labels(n, "XLMRobertaForSequenceClassification"))
    tensors = {name: x for name, x in model.tensors.items() if "pooler" not in name}
    parts = _linear("classifier.dense", HIDDEN) | _linear("classifier.out_proj", n)
    return _with_head(replace(model, tensors=tensors), "roberta.", parts)


def modern_bert(n: int = 1, **overrides: object) -> TinyModel:
    labels = _labels(n, "ModernBertForSequenceClassification")
    model = tiny_encoders.modern_bert(**labels, **overrides)
    parts = {"head.dense.weight": (HIDDEN, HIDDEN), "head.norm.weight": (HIDDEN,)}
    return _with_head(model, "model.", parts | _linear("classifier", n))


HEADS: Mapping[str, Callable[[], TinyModel]] = {
    "bert": bert,
    "bert-3": lambda: bert(3),
    "roberta": roberta,
    "modern_bert": modern_bert,
    "modern_bert-mean": lambda: modern_bert(3, classifier_pooling="mean"),
    "modern_bert-silu": lambda: modern_bert(2, classifier_activation="silu"),
}


def write(model: TinyModel, folder: Path) -> Path:
    """A folder whose tokenizer joins two texts, and which has no chat template."""
    tiny.write_hf(model, folder)
    path = folder / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(path))
    first, last = SPECIAL[BOS], SPECIAL[EOS]
    is_bert = model.config["model_type"] == "bert"
    joint = [f"{last}:0"] * (1 if is_bert else 2) + [f"$B:{int(is_bert)}"]
    backend.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[f"{first}:0", "$A:0", *joint, f"{last}:{int(is_bert)}"],
        special_tokens=[(first, BOS), (last, EOS)],
    )
    backend.save(str(path))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": first}))
    return folder


def add_dense(folder: Path, number: int, shape: tuple[int, int], act: str, bias: bool) -> Path:
    """A dense layer as sentence-transformers writes it."""
    part = folder / f"{number}_Dense"
    part.mkdir()
    tensors = {"linear.weight": uniform(f"dense/{number}", shape, 0.3)}
    if bias:
        tensors["linear.bias"] = uniform(f"dense/{number}/bias", shape[:1], 0.3)
    write_safetensors(part / "model.safetensors", tensors)
    said = {"in_features": shape[1], "out_features": shape[0], "bias": bias}
    (part / "config.json").write_text(json.dumps(said | {"activation_function": act}))
    return part


def dense(x: tiny.Array, number: int, shape: tuple[int, int], bias: bool) -> tiny.Array:
    """What a layer of ``add_dense`` gives without its activation."""
    y = uniform(f"dense/{number}", shape, 0.3) @ x
    return np.asarray(y + uniform(f"dense/{number}/bias", shape[:1], 0.3) if bias else y)
