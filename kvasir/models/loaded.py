"""A model file, opened: what it computes, and what planning needs to know of it."""

from __future__ import annotations

import logging

import msgspec

from kvasir.config.resolved import ModelFacts
from kvasir.core.errors import ModelError, printable
from kvasir.formats.types import FORMATS
from kvasir.models.keys import listed
from kvasir.models.read import config_from
from kvasir.models.spec import ModelConfig
from kvasir.models.tensors import ignorable
from kvasir.models.tower import AnyTower, read_tower
from kvasir.models.vectors import vector_facts
from kvasir.weights.default import default_model
from kvasir.weights.source import ModelSource, open_model

_log = logging.getLogger("kvasir.models")


class LoadedModel(msgspec.Struct, frozen=True):
    """A model file and what it computes."""

    source: ModelSource
    config: ModelConfig
    tower: AnyTower | None = None
    """Of a model that sees images."""


def load_model(path: str | None) -> LoadedModel:
    """Opens a GGUF file or Hugging Face folder, the default model without ``path``. Raises
    ModelError."""
    source = open_model(path if path is not None else default_model())
    config = config_from(source)
    if config.unread:
        path, fields = printable(str(source.path)), listed(config.unread)
        _log.warning("%s: config.json: nothing reads %s", path, fields)
    tower = read_tower(source, config.hidden_size) if config.sees else None
    _check_windows(source, config, tower)
    return LoadedModel(source, config, tower)


def _check_windows(source: ModelSource, config: ModelConfig, tower: AnyTower | None) -> None:
    """Raises ModelError where tokens of a tile see each other, and a window holds fewer."""
    window = min((x.window for x in config.layers if x.window), default=0)
    if tower and config.block.spans and 0 < window < tower.tile.n_tokens:
        raise ModelError(
            f"{source.path}: config.json: windows of {window} tokens, expected at least the "
            f"{tower.tile.n_tokens} of an image, which see each other"
        )


def model_facts(model: LoadedModel) -> ModelFacts:
    """What planning needs to know of a model."""
    config, table, tower = model.config, model.source.tensors, model.tower
    may_skip = ignorable(config)
    tensors = [table[x] for x in table if not may_skip(x) or (tower and tower.has(x))]
    formats = {info.format for info in tensors if len(info.shape) > 1}
    if not formats:
        raise ModelError(
            f"{model.source.path}: none of its {len(table)} tensors is a matrix: the embeddings "
            "and layers are missing"
        )
    return ModelFacts(
        name=model.source.name,
        vocab_size=config.vocab_size,
        context_length=config.max_positions,
        kv_values_per_token=sum(x.kv_vectors * x.head_dim for x in config.kv_layers),
        weight_bytes=sum(info.n_bytes for info in tensors),
        weight_dtype=_weight_dtype(formats),
        kv_vectors_per_token=sum(x.kv_vectors for x in config.kv_layers),
        windows=config.windows,
        state_bytes=config.state_bytes,
        kept_bytes=config.kept_bytes,
        kv_layers=tuple((x.kv_vectors * x.head_dim, x.kv_vectors) for x in config.kv_layers)
        if config.windows
        else (),
        vectors=vector_facts(model.source, config),
        whole_prompts=config.block.both_ways,
        span_tokens=_span_tokens(model),
    )


def _span_tokens(model: LoadedModel) -> int:
    tower = model.tower
    return tower.tile.n_tokens if tower and model.config.block.spans else 0


def _weight_dtype(formats: set[str]) -> str:
    if any(FORMATS[name].is_quantized for name in formats):
        return "quantized"
    return {"BF16": "bfloat16", "F16": "float16"}.get(min(formats), "float32")
