"""The tower of a GGUF file that lies in another, as a folder would have it: its metadata as what
config.json and the files of processors say, under their names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvasir.checkpoints.keys import Keys
from kvasir.checkpoints.unseen import why_unseen
from kvasir.core.errors import ModelError
from kvasir.core.tiles import CHANNELS, MAX_TOKENS
from kvasir.formats.mapped import TensorFile, TensorTable
from kvasir.models.families.mmproj import MMPROJ
from kvasir.models.family import Family
from kvasir.models.spec import MAX_LAYERS
from kvasir.weights.source import ModelSource

Said = dict[str, Any]
_log = logging.getLogger("kvasir.checkpoints")
_VISION = "clip.vision."
_UP, _DOWN = "ffn_up", "ffn_down"
MAX_PIXELS = 1 << 28
LEAST_PIXELS = 256**2
"""Of an image of Qwen3-VL, in files that do not say it."""
_UNREAD = ("v.token_embd.",)
"""Begin names of tensors that are rows of the language model's embedding."""
_PREPROCESSOR, _PROCESSOR = "preprocessor_config.json", "processor_config.json"


@dataclass(frozen=True, slots=True)
class _Projector:
    """What a type of projector says, in words of folders: config.json, vision_config,
    preprocessor_config.json, each beside what all say."""

    said: Callable[[_Eyes], tuple[Said, Said, Said]]
    act: str
    """Of the tower, where the file says GELU."""
    images: tuple[str, ...]
    """Tokens that stand for rows: the first that the vocabulary has."""
    others: Mapping[str, str]
    """Further tokens, by the fields that name them."""
    models: tuple[str, ...] = ()
    """Architectures that it belongs to; none: any whose vocabulary has its tokens."""


@dataclass(frozen=True, slots=True)
class _Eyes:
    """A file, and the model that it lies beside."""

    file: TensorFile
    model: ModelSource
    keys: Keys

    @property
    def size(self) -> int:
        return self.keys.integer("image_size")

    @property
    def patch(self) -> int:
        return self.keys.integer("patch_size")

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def rows_of(self, tensor: str) -> int:
        """Raises ModelError."""
        if not self.has(tensor):
            raise ModelError(f"{self.file.path}: there is no tensor {tensor}")
        return self.file.tensors[tensor].shape[0]

    def fold(self, default: int) -> int:
        return self.keys.integer("projector.scale_factor", default)


def eyes_of(source: ModelSource) -> ModelSource | None:
    """Of a model that sees images: itself, a folder whose tower runs; or what the file beside a
    GGUF file says, as a folder. Raises ModelError for a file that was asked for and does not
    run."""
    if source.kind == "hf":
        return None if why_unseen(source.config) else source
    return None if source.sight is None else _opened(source, source.sight)


def family_of(eyes: ModelSource) -> Family | None:
    """Of a file's tower; None of a folder."""
    return MMPROJ.get(str(eyes.config.get(_TYPE)))


_TYPE = "clip.projector_type"
"""In what stands in place of config.json, which no folder has."""


def _opened(model: ModelSource, file: TensorFile) -> ModelSource | None:
    """None, and a warning, for a file that nobody asked for and that does not run, or is of another
    model."""
    try:
        return _fitting(model, file)
    except ModelError as error:
        if model.sight_named:
            raise
        _log.warning("%s: the model is read without it", error.message)
        return None


def _fitting(model: ModelSource, file: TensorFile) -> ModelSource:
    """Raises ModelError."""
    said, arch = file.metadata, model.config.get("general.architecture")
    kind = str(said.get(f"{_VISION}projector_type") or said.get(_TYPE))
    if kind not in _PROJECTORS:
        why = f"{file.path}: projectors of type {kind!r} do not run: {', '.join(_PROJECTORS)} do"
        raise ModelError(why, code="unsupported_model")
    models = _PROJECTORS[kind].models
    if models and arch not in models:
        wanted = " or ".join(models)
        raise ModelError(f"{file.path}: {kind} is of models of {wanted}, {model.path} is {arch}")
    return _translated(_Eyes(file, model, Keys(said, str(file.path), _VISION)), kind)


def _translated(eyes: _Eyes, kind: str) -> ModelSource:
    projector, keys = _PROJECTORS[kind], eyes.keys
    above, vision, reads = projector.said(eyes)
    shared = {
        "hidden_size": keys.integer("embedding_length"),
        "num_attention_heads": keys.integer("attention.head_count"),
        "num_hidden_layers": keys.integer("block_count", most=MAX_LAYERS),
        "intermediate_size": keys.integer("feed_forward_length"),
        "patch_size": eyes.patch,
        "image_size": eyes.size,
        "layer_norm_eps": _plain(keys.number("attention.layer_norm_epsilon", 1e-6)),
        "hidden_act": "silu" if eyes.file.metadata.get("clip.use_silu") else projector.act,
    }
    pixels = {name: _channels(keys, name) for name in ("image_mean", "image_std")}
    tokens = _ImageTokens(eyes.model)
    ids = {field: tokens.id_of(name) for field, name in projector.others.items()}
    is_merged = kind == "pixtral" and eyes.has("mm.patch_merger.weight")
    config = {
        _TYPE: "mistral3" if is_merged else kind,
        **dict.fromkeys(("image_token_id", "image_token_index"), tokens.first(projector.images)),
        **ids,
        **above,
        "vision_config": {**shared, **vision},
    }
    made = {_PREPROCESSOR: {**pixels, **reads}}
    if kind == "pixtral":
        fold = above.get("spatial_merge_size", 1)
        made[_PROCESSOR] = {"patch_size": eyes.patch, "spatial_merge_size": fold}
    file = eyes.file
    return ModelSource(file.path, "hf", eyes.model.name, config, _tensors(eyes), (file,), made=made)


def _plain(value: float) -> float:
    """The decimal number that became a float32."""
    return float(f"{value:.7g}")


def _channels(keys: Keys, name: str) -> list[float]:
    """GGUF has lists as tuples."""
    found = keys.raw(name)
    if not isinstance(found, list | tuple) or len(found) != CHANNELS:
        raise keys.error(name, found, f"{CHANNELS} numbers")
    return [float(x) for x in found]


def _tensors(eyes: _Eyes) -> TensorTable:
    """Older files call the first matrix of an MLP ``ffn_down``."""
    down = eyes.file.tensors.get(f"v.blk.0.{_DOWN}.weight")
    inner, hidden = (eyes.keys.integer(f"{x}_length") for x in ("feed_forward", "embedding"))
    is_swapped = down is not None and down.shape == (inner, hidden) != (hidden, inner)
    found = {}
    for name, info in zip(eyes.file.tensors, eyes.file.tensors.listing(), strict=True):
        if is_swapped and name.startswith("v.blk."):
            name = _swapped(name)
        if not name.startswith(_UNREAD):
            found[name] = info
    return TensorTable(found)


def _swapped(name: str) -> str:
    other = {_UP: _DOWN, _DOWN: _UP}
    return ".".join(other.get(part, part) for part in name.split("."))


class _ImageTokens:
    """Of the model's vocabulary."""

    def __init__(self, model: ModelSource) -> None:
        self._model = model
        found = model.config.get("tokenizer.ggml.tokens")
        self._ids = {x: i for i, x in enumerate(found)} if isinstance(found, list | tuple) else {}

    def first(self, names: tuple[str, ...]) -> int:
        known = next((x for x in names if x in self._ids), names[0])
        return self.id_of(known)

    def id_of(self, name: str) -> int:
        """Raises ModelError."""
        if name not in self._ids:
            raise ModelError(
                f"{self._model.path}: the vocabulary has no token {name!r}, which stands for "
                "images: check that the model and its mmproj file are of one model"
            )
        return self._ids[name]


def _idefics3(eyes: _Eyes) -> tuple[Said, Said, Said]:
    longest = eyes.keys.integer("preproc_image_size", eyes.size)
    reads = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": eyes.size}}
    return {"scale_factor": eyes.fold(2)}, {}, reads


def _gemma3(eyes: _Eyes) -> tuple[Said, Said, Said]:
    n = (eyes.size // eyes.patch // eyes.fold(4)) ** 2
    return {"mm_tokens_per_image": n}, {}, _square(eyes)


def _internvl(eyes: _Eyes) -> tuple[Said, Said, Said]:
    part = "v.blk.0"
    vision = {
        "attention_bias": eyes.has(f"{part}.attn_q.bias"),
        "norm_type": "layer_norm" if eyes.has(f"{part}.ln1.bias") else "rms_norm",
        "use_qk_norm": eyes.has(f"{part}.attn_q_norm.weight"),
    }
    tiles = {
        "min_patches": eyes.keys.integer("preproc_min_tiles", 1),
        "max_patches": eyes.keys.integer("preproc_max_tiles", 12),
    }
    return {"downsample_ratio": 1 / eyes.fold(2)}, vision, {**_square(eyes), **tiles}


def _pixtral(eyes: _Eyes) -> tuple[Said, Said, Said]:
    arch = eyes.model.config.get("general.architecture")
    text = Keys(eyes.model.config, str(eyes.model.path), f"{arch}.")
    eps = text.number("attention.layer_norm_rms_epsilon")
    above: Said = {
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": eyes.has("mm.1.bias"),
        "text_config": {"rms_norm_eps": _plain(eps)},
    }
    if eyes.has("mm.patch_merger.weight"):
        above["spatial_merge_size"] = eyes.keys.integer("spatial_merge_size", 2)
    return above, {}, {"size": {"longest_edge": eyes.size}}


def _qwen2(eyes: _Eyes) -> tuple[Said, Said, Said]:
    """What these files call the inner size of an MLP is the language model's width."""
    hidden = eyes.keys.integer("embedding_length")
    vision = {
        "embed_dim": hidden,
        "hidden_size": eyes.keys.integer("projection_dim"),
        "mlp_ratio": eyes.rows_of("v.blk.0.ffn_up.weight") // hidden,
        "hidden_act": "quick_gelu",
    }
    return {}, {**_depth(eyes), **vision}, _bounds(eyes)


def _qwen2_5(eyes: _Eyes) -> tuple[Said, Said, Said]:
    every = eyes.keys.integer("n_wa_pattern")
    depth = eyes.keys.integer("block_count", most=MAX_LAYERS)
    vision = {
        "out_hidden_size": eyes.keys.integer("projection_dim"),
        "window_size": eyes.keys.integer("window_size", 112),
        "fullatt_block_indexes": list(range(every - 1, depth, every)),
    }
    return {}, {**_depth(eyes), **vision}, _bounds(eyes)


def _qwen3(eyes: _Eyes) -> tuple[Said, Said, Said]:
    taps = eyes.keys.raw("is_deepstack_layers")
    if taps is not None and not isinstance(taps, list | tuple):
        raise eyes.keys.error("is_deepstack_layers", taps, "a flag of each layer")
    vision = {
        "out_hidden_size": eyes.keys.integer("projection_dim"),
        "num_position_embeddings": (eyes.size // eyes.patch) ** 2,
        "deepstack_visual_indexes": [i for i, is_tap in enumerate(taps or ()) if is_tap],
    }
    return {}, {**_depth(eyes), **vision}, _bounds(eyes, LEAST_PIXELS)


def _depth(eyes: _Eyes) -> Said:
    keys = eyes.keys
    return {
        "depth": keys.integer("block_count", most=MAX_LAYERS),
        "num_heads": keys.integer("attention.head_count"),
    }


def _bounds(eyes: _Eyes, least: int = 56**2) -> Said:
    """Pixels of an image; where the file does not say it, as many at most as are computed."""
    fold = eyes.keys.integer("spatial_merge_size", 2)
    most = MAX_TOKENS * (eyes.patch * fold) ** 2
    return {
        "patch_size": eyes.patch,
        "min_pixels": eyes.keys.integer("image_min_pixels", least),
        "max_pixels": eyes.keys.integer("image_max_pixels", most, most=MAX_PIXELS),
    }


def _square(eyes: _Eyes) -> Said:
    return {"size": {"height": eyes.size, "width": eyes.size}}


_GELU_TANH = "gelu_pytorch_tanh"
_PAD = "<|image_pad|>"
"""Vocabularies of Qwen's models that see nothing have it, too."""
_QWEN3 = ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe")
_PROJECTORS: Mapping[str, _Projector] = {
    "idefics3": _Projector(_idefics3, _GELU_TANH, ("<image>",), {}),
    "gemma3": _Projector(
        _gemma3,
        _GELU_TANH,
        ("<image_soft_token>", "<pad>"),
        {"boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>"},
        ("gemma3",),
    ),
    "internvl": _Projector(_internvl, "gelu", ("<IMG_CONTEXT>",), {}),
    "qwen2vl_merger": _Projector(_qwen2, "", (_PAD,), {}, ("qwen2vl",)),
    "qwen2.5vl_merger": _Projector(_qwen2_5, "", (_PAD,), {}, ("qwen2vl",)),
    "qwen3vl_merger": _Projector(_qwen3, _GELU_TANH, (_PAD,), {}, _QWEN3),
    "pixtral": _Projector(_pixtral, "gelu", ("[IMG]",), {}),
}
"""Rows of Gemma 3's images stand where its converter has cut off the token of theirs, so that
another one that nobody writes stands for them."""
