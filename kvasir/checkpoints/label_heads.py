"""Heads for labels: where their parts lie in a file, and what comes before them."""

from __future__ import annotations

import msgspec

from kvasir.checkpoints.dense_layers import ACTS, DenseLayer
from kvasir.core.errors import ModelError
from kvasir.formats.types import TensorInfo
from kvasir.models.spec import ModelConfig
from kvasir.weights.source import ModelSource

_PARTS = """
score classifier classifier.out_proj classifier.dense head.dense head.norm
cls cls.norm cls.output dense_2 dense_3
"""
HEAD_TENSORS = frozenset(f"{x}.{end}" for x in _PARTS.split() for end in ("weight", "bias"))
"""Which no program reads (``text.heads`` does)."""


class LabelHead(msgspec.Struct, frozen=True):
    rows: TensorInfo
    """[labels, hidden size]."""
    bias: TensorInfo | None = None
    before: DenseLayer | None = None
    pooling: str = "last"
    """Of what it reads."""


class _HeadNames(msgspec.Struct, frozen=True):
    """Of a kind of head; one is chosen by the tensors that a file has."""

    rows: str
    dense: str = ""
    act: str = "identity"
    norm: str = ""
    pooling: str = "last"


_FOLDERS = (
    _HeadNames("score"),
    _HeadNames("classifier.out_proj", "classifier.dense", "tanh", pooling="cls"),
    _HeadNames("classifier", "head.dense", "gelu", "head.norm", "cls"),
    _HeadNames("classifier", "bert.pooler.dense", "tanh", pooling="cls"),
)
"""Of a decoder; RoBERTa and XLM-R; ModernBERT; BERT."""
_GGUF = {
    "bert": _HeadNames("cls.output", "cls", "tanh", pooling="cls"),
    "modern-bert": _HeadNames("cls.output", "cls", "gelu", "cls.norm", "cls"),
}
"""By architecture; others have the rows alone."""


def label_head(source: ModelSource, config: ModelConfig) -> LabelHead | None:
    """None where the file has none. Raises ModelError on parts that are missing or do not fit."""
    names = _gguf_names(source) if source.kind == "gguf" else _folder_names(source)
    if names is None:
        return None
    size = config.hidden_size
    rows = source.tensors[f"{names.rows}.weight"]
    if len(rows.shape) != 2 or rows.shape[1] != size or not rows.shape[0]:
        raise ModelError(f"{source.path}: {rows.name} is {rows.shape}, expected [labels, {size}]")
    pooling = names.pooling
    if names.norm == "head.norm":
        pooling = _word(source, "classifier_pooling", "cls", ("cls", "mean"))
    before = _before(source, config, names) if names.dense else None
    return LabelHead(rows, _bias(source, names.rows, rows.shape[0]), before, pooling)


def _folder_names(source: ModelSource) -> _HeadNames | None:
    has = source.tensors.__contains__
    found = [x for x in _FOLDERS if has(f"{x.rows}.weight")]
    whole = [x for x in found if not x.dense or has(f"{x.dense}.weight")]
    if found and not whole:
        wanted = " or ".join(f"{x.dense}.weight" for x in found)
        raise ModelError(
            f"{source.path}: {found[0].rows}.weight is a head for labels without {wanted} before "
            "it, so that its labels would be others",
            code="unsupported_model",
        )
    return whole[0] if whole else None


def _gguf_names(source: ModelSource) -> _HeadNames | None:
    if "cls.output.weight" not in source.tensors:
        return None
    names = _GGUF.get(str(source.config.get("general.architecture")), _HeadNames("cls.output"))
    if names.dense and f"{names.dense}.weight" not in source.tensors:
        raise ModelError(
            f"{source.path}: {names.rows}.weight is a head for labels without {names.dense}.weight "
            "before it (converters leave BERT's out), so that its labels would be others: use the "
            "model's Hugging Face folder",
            code="unsupported_model",
        )
    return names


def _before(source: ModelSource, config: ModelConfig, names: _HeadNames) -> DenseLayer:
    size, act = config.hidden_size, names.act
    if names.norm == "head.norm":
        act = _word(source, "classifier_activation", "gelu", ACTS)
    weight = source.tensors[f"{names.dense}.weight"]
    if weight.shape != (size, size):
        raise ModelError(
            f"{source.path}: {weight.name} is {weight.shape}, expected [{size}, {size}]"
        )
    norm = source.tensors.get(f"{names.norm}.weight") if names.norm else None
    if norm is not None and norm.shape != (size,):
        raise ModelError(f"{source.path}: {norm.name} is {norm.shape}, expected [{size}]")
    norm_bias = _bias(source, names.norm, size) if names.norm else None
    bias = _bias(source, names.dense, size)
    return DenseLayer(weight, bias, act, norm, norm_bias, config.norm_eps)


def _bias(source: ModelSource, name: str, size: int) -> TensorInfo | None:
    bias = source.tensors.get(f"{name}.bias")
    if bias is not None and bias.shape != (size,):
        raise ModelError(f"{source.path}: {bias.name} is {bias.shape}, expected [{size}]")
    return bias


def _word(source: ModelSource, field: str, default: str, known: tuple[str, ...]) -> str:
    said = source.config.get(field, default)
    if said not in known:
        raise ModelError(
            f"{source.path}: config.json: {field} is {str(said)[:80]!r}, supported are "
            f"{', '.join(known)}",
            code="unsupported_model",
        )
    return str(said)
