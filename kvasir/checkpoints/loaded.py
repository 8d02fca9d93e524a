"""A model file, opened: what it computes, and what planning needs to know of it."""

from __future__ import annotations

import logging

import msgspec
from msgspec.structs import replace

from kvasir.checkpoints.keys import Keys, listed
from kvasir.checkpoints.mmproj import eyes_of
from kvasir.checkpoints.read import config_from
from kvasir.checkpoints.read_rope import gguf_axes
from kvasir.checkpoints.tensors import ignorable, weight_of
from kvasir.checkpoints.tower import read_tower, seeing_family
from kvasir.checkpoints.unseen import why_unseen
from kvasir.checkpoints.vectors import vector_facts
from kvasir.config.resolved import ModelFacts
from kvasir.core.errors import ModelError, printable
from kvasir.formats.types import FORMATS
from kvasir.ir.vocabulary import VocabMap
from kvasir.models.spec import ROPE, ModelConfig
from kvasir.models.towers import AnyTower, QwenTower
from kvasir.weights.adapter import Merged
from kvasir.weights.default import default_model
from kvasir.weights.source import ModelSource, open_model

_log = logging.getLogger("kvasir.checkpoints")


class LoadedModel(msgspec.Struct, frozen=True):
    """A model file and what it computes."""

    source: ModelSource
    config: ModelConfig
    tower: AnyTower | None = None
    """Of a model that sees images."""
    eyes: ModelSource | None = None
    """What the tower is read of: ``source``, or a file beside it."""
    ids: VocabMap | None = None
    """Of a draft model with other tokens than its target's."""


def load_model(path: str | None, mmproj: str | None = None) -> LoadedModel:
    """Opens a GGUF file, with its tower (``mmproj``, as in ``open_model``), or a Hugging Face
    folder; the default model without ``path``. Raises ModelError."""
    source = open_model(path if path is not None else default_model(), mmproj)
    config = config_from(source)
    if config.unread:
        path, fields = printable(str(source.path)), listed(config.unread)
        _log.warning("%s: config.json: nothing reads %s", path, fields)
    if lacks := why_unseen(source.config) if source.kind == "hf" else "":
        _log.warning("%s: it runs without its images: they need %s", source.path, lacks)
        config = replace(config, sees=False, block=replace(config.block, spans=False))
    eyes = eyes_of(source) if config.sees or source.kind == "gguf" else None
    tower = None if eyes is None else read_tower(eyes, config.hidden_size)
    if eyes is not None and tower is not None and source.kind == "gguf":
        config = _seeing(config, source, eyes, tower)
    _check_windows(source, config, tower)
    if source.adapter and config.tied and config.writes:
        _check_tied(source, config)
    return LoadedModel(source, config, tower, eyes)


def _seeing(
    config: ModelConfig, source: ModelSource, eyes: ModelSource, tower: AnyTower
) -> ModelConfig:
    """Of a GGUF file, whose tower is beside it. Raises ModelError."""
    family = seeing_family(eyes)
    assert family is not None
    deep = len(tower.taps) if isinstance(tower, QwenTower) else 0
    block = replace(config.block, spans=family.block.spans)
    rope, arch = config.ropes.get(ROPE), source.config.get("general.architecture")
    if family.rope_axes is None or rope is None or rope.axes is not None:
        return replace(config, sees=True, block=block, deep_layers=deep)
    keys = Keys(source.config, str(source.path), f"{arch}.")
    n_pairs = (rope.rotary_dim or config.layers[0].head_dim) // 2
    axes = gguf_axes(family.rope_axes, keys, n_pairs)
    ropes = {**config.ropes, ROPE: replace(rope, axes=axes)}
    return replace(config, sees=True, block=block, deep_layers=deep, ropes=ropes)


def _check_windows(source: ModelSource, config: ModelConfig, tower: AnyTower | None) -> None:
    """Raises ModelError where tokens of a tile see each other, and a window holds fewer."""
    window = min((x.window for x in config.layers if x.window), default=0)
    if tower and config.block.spans and 0 < window < tower.tile.n_tokens:
        raise ModelError(
            f"{source.path}: config.json: windows of {window} tokens, expected at least the "
            f"{tower.tile.n_tokens} of an image, which see each other"
        )


def _check_tied(source: ModelSource, config: ModelConfig) -> None:
    """Raises ModelError where an adapter changes embeddings that are the head as well, or a copy of
    them: PEFT adds to one of the two, and there is one matrix."""
    find = weight_of(config)
    shared = {x for part in ("embed", "lm_head") for x in find(part, (0, 0)).sources}
    for name in shared & set(source.tensors):
        if isinstance(source.tensors[name].module, Merged):
            raise ModelError(
                f"{source.path}: the adapter changes '{name}', which embeds tokens and writes them "
                "(tie_word_embeddings), in one of these: that is not computed",
                code="unsupported_model",
            )


def model_facts(model: LoadedModel) -> ModelFacts:
    """What planning needs to know of a model."""
    config, table, tower = model.config, model.source.tensors, model.tower
    may_skip = ignorable(config)
    tensors = [table[x] for x in table if not may_skip(x) or (tower and tower.has(x))]
    if model.eyes is not None and tower is not None and model.eyes is not model.source:
        tensors += [x for x in model.eyes.tensors.listing() if tower.has(x.name)]
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
        weight_dtype=weight_dtype(formats),
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


def weight_dtype(formats: set[str]) -> str:
    """Of a model whose matrices are stored so."""
    if any(FORMATS[name].is_quantized for name in formats):
        return "quantized"
    return {"BF16": "bfloat16", "F16": "float16"}.get(min(formats), "float32")
