"""From a model file to its config: the fields of its family, and one spec for each layer."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from kvasir.checkpoints.choose import HARMLESS, Chosen, choose
from kvasir.checkpoints.fields import Fields
from kvasir.checkpoints.keys import Keys, listed
from kvasir.checkpoints.qkv import is_fused
from kvasir.checkpoints.qwen_tower import read_deepstack
from kvasir.checkpoints.read_experts import read_mlps
from kvasir.checkpoints.read_kv import with_kv
from kvasir.checkpoints.read_latent import latent_heads, read_latent
from kvasir.checkpoints.read_mixers import read_kv_heads, read_scans, read_taps
from kvasir.checkpoints.read_multipliers import read_multipliers, score_multiplier
from kvasir.checkpoints.read_parts import MIXERS, read_parts
from kvasir.checkpoints.read_rope import read_ropes
from kvasir.checkpoints.read_streams import read_deviations, read_streams
from kvasir.checkpoints.tensors import base_of, tensor_name
from kvasir.core.errors import ModelError
from kvasir.formats.mapped import TensorTable
from kvasir.models.family import PixtralTowerSpec, QwenTowerSpec
from kvasir.models.spec import (
    MAX_HEAD_DIM,
    MAX_LAYERS,
    NO_ROPE,
    ROPE,
    ROPE_STILL,
    ROPE_WINDOW,
    BlockSpec,
    LayerSpec,
    ModelConfig,
    RopeConfig,
)
from kvasir.weights.source import ModelSource

_GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")
_ACTS = {"silu": "silu", "gelu": "gelu", **dict.fromkeys(_GELU_TANH, "gelu_tanh")}
_ACTS |= {"clamped_swiglu": "clamped_swiglu", "relu2": "relu2"}
_LAYER_TYPES: Mapping[str, tuple[object, object]] = {
    "hf": ("full_attention", "sliding_attention"),
    "gguf": (False, True),
}
"""Of a layer that is full, and one that slides."""
_CHUNKED = ("full_attention", "chunked_attention")
_BIASES = {"qkv_bias": "q", "o_bias": "o", "mlp_bias": "down"}
"""Flags, each with a weight that has such a bias."""


def config_from(source: ModelSource) -> ModelConfig:
    """Reads a model's config. Raises ModelError naming the file and the offending field."""
    chosen = choose(source)
    config = _read(chosen, source.tensors)
    unread = chosen.fields.unread(HARMLESS[source.kind])
    if unread and source.kind == "gguf":
        raise ModelError(
            f"{source.path}: nothing reads {listed(unread)} of its metadata: a model of the "
            f"family {config.family} that has them is not supported",
            code="unsupported_model",
        )
    if chosen.headless:
        config = replace(config, tied=True, headless=True)
    base = base_of(chosen.fields.family, source.kind, source.tensors)
    fused = is_fused(source.tensors) if source.kind == "gguf" else None
    deep = len(_taps(source, chosen))
    return replace(config, unread=unread, base=base, fused_qkv=fused, deep_layers=deep)


def _read(chosen: Chosen, tensors: TensorTable) -> ModelConfig:
    fields = chosen.fields
    fields.refuse_others()
    layers = with_kv(fields, tensors, read_deviations(fields, _layers(fields, tensors)))
    has_heads = any(layer.attends for layer in layers)
    ropes = read_ropes(fields, tensors, layers) if has_heads else {}
    layers = _with_ropes(fields, layers, ropes)
    hidden, used = fields.integer("hidden_size"), {layer.rope for layer in layers}
    first = fields.integer("padding_id", least=-1) + 1
    return ModelConfig(
        family=fields.family.name,
        kind=fields.kind,
        block=_block(fields, tensors, layers),
        vocab_size=_vocab_size(fields, tensors),
        hidden_size=hidden,
        layers=layers,
        max_positions=_longest(ropes, fields.integer("max_positions", first + 1)) - first,
        norm_eps=fields.number("rms_eps") or fields.number("norm_eps"),
        attention_scale=_attention_scale(fields, layers[0], len(layers), ropes),
        ropes={name: rope for name, rope in ropes.items() if name in used},
        attention_softcap=fields.number("attention_softcap"),
        final_softcap=fields.number("final_softcap"),
        embed_scale=hidden**0.5 if fields.family.sqrt_embed else fields.number("embed_scale"),
        residual_scale=_residual_scale(fields, len(layers)),
        multipliers=read_multipliers(fields),
        logit_scale=fields.number("logit_scale") / _logit_divisor(fields, hidden),
        tied=_tied(fields, tensors),
        learned_positions=fields.flag("learned_positions"),
        first_position=first,
        token_types=_token_types(fields, tensors),
        layer_embed=fields.integer("layer_embed", least=0),
        layer_vocab=_layer_vocab(fields, tensors),
        streams=read_streams(fields, tensors),
        draft_layers=fields.integer("draft_layers", least=0),
        sees=fields.kind == "hf" and bool(fields.family.text_key) and not fields.family.text_alone,
    )


def _taps(source: ModelSource, chosen: Chosen) -> tuple[int, ...]:
    """Layers of a tower whose rows are added behind early ones of the model."""
    if source.kind == "gguf":
        return ()
    spec, config = chosen.fields.family.tower, Keys(source.config, f"{source.path}: config.json")
    if not isinstance(spec, QwenTowerSpec) or isinstance(spec, PixtralTowerSpec):
        return ()
    return read_deepstack(spec, config.table("vision_config") or config)


def _longest(ropes: Mapping[str, RopeConfig], positions: int) -> int:
    """As said, or as the rope stretches it."""
    return ropes[ROPE].stretched(positions) if ropes else positions


def _layer_vocab(fields: Fields, tensors: TensorTable) -> int:
    """Tokens of the embeddings that each layer has of its own: those of the model, or more."""
    vocab = _vocab_size(fields, tensors)
    if not fields.integer("layer_embed", least=0):
        return 0
    found = fields.integer("layer_vocab") or vocab
    if found < vocab and not fields.has("n_streams"):
        raise fields.error("layer_vocab", found, f"at least the vocabulary of {vocab}")
    return found


def _token_types(fields: Fields, tensors: TensorTable) -> int:
    """GGUF files say it by their table, which some lack."""
    if fields.kind == "hf" or not fields.has("n_types"):
        return fields.integer("n_types")
    table = tensors.get(tensor_name(fields.family, fields.kind, "types"))
    return 0 if table is None else table.shape[0]


def _block(fields: Fields, tensors: TensorTable, layers: tuple[LayerSpec, ...]) -> BlockSpec:
    if fields.has("both_ways") and not fields.flag("both_ways"):
        raise fields.error("both_ways", False, "true of a model that makes vectors alone")
    return replace(
        fields.family.block,
        act=_ACTS[fields.word("act", _ACTS)],
        parallel=fields.flag("parallel"),
        alibi=fields.has("positions_by") and fields.word("positions_by", ("alibi",)) == "alibi",
        qkv_bias=_bias(fields, "qkv_bias", tensors),
        o_bias=_bias(fields, "o_bias", tensors),
        mlp_bias=_bias(fields, "mlp_bias", tensors),
        qk_norm=_qk_norm(fields, tensors),
        head_bias=fields.flag("head_bias"),
        spans=fields.family.block.spans and _has_spans(fields, layers),
    )


def _has_spans(fields: Fields, layers: tuple[LayerSpec, ...]) -> bool:
    """Files that may say it, do in a word; where it is of layers with a window, there have to be
    some."""
    if not fields.says("spans"):
        return not fields.key("spans")
    fields.word("spans", ("vision",))
    return any(layer.window for layer in layers) or not fields.family.block.near_spans


def _layers(fields: Fields, tensors: TensorTable) -> tuple[LayerSpec, ...]:
    latent = read_latent(fields, tensors)
    n_layers = _n_layers(fields)
    heads, kv_heads, dim = (
        _heads(fields, n_layers) if latent is None else latent_heads(fields, latent, n_layers)
    )
    mlps, windows = read_mlps(fields, n_layers), _windows(fields, n_layers)
    taps, scans = read_taps(fields, n_layers), read_scans(fields, tensors, n_layers)
    beside, parts = fields.flag("scan_beside"), read_parts(fields)
    mixes = tuple(part in MIXERS for part in parts) or (True,) * n_layers
    each = zip(kv_heads, mlps, windows, taps, scans, mixes, strict=True)
    return tuple(
        LayerSpec(
            *(heads, kv, dim, size, window),
            experts=experts,
            n_taps=n,
            scan=scan,
            scan_beside=beside,
            mixes=mixes,
            latent=latent,
        )
        for kv, (size, experts), window, n, scan, mixes in each
    )


def _n_layers(fields: Fields) -> int:
    """As said, or as many as are listed. GGUF files count those that guess further tokens, too."""
    drafts, listed = fields.integer("draft_layers", least=0), read_parts(fields)
    if fields.kind == "hf" and listed:
        return len(listed)
    n = fields.integer("n_layers", most=MAX_LAYERS)
    if fields.kind == "gguf" and drafts >= n:
        raise fields.error("draft_layers", drafts, f"less than {fields.key('n_layers')} = {n}")
    return n - drafts if fields.kind == "gguf" else n


def _heads(fields: Fields, n_layers: int) -> tuple[int, tuple[int, ...], int]:
    """Query heads, KV heads of each layer, size of a head. Where the file says nothing there are as
    many KV heads as query heads, which share the width of a token. None in a family that does not
    attend."""
    if not fields.has("n_heads"):
        return 0, (0,) * n_layers, 0
    hidden, heads = fields.integer("hidden_size"), fields.integer("n_heads")
    one_kv_head = fields.flag("multi_query") and not fields.flag("grouped_query")
    said = (1,) * n_layers if one_kv_head else read_kv_heads(fields, n_layers)
    kv_heads = tuple(n or heads for n in said)
    of_heads = f"{fields.key('n_heads')} = {heads}"
    for n in kv_heads:
        if heads % n:
            raise fields.error("n_kv_heads", n, f"a divisor of {of_heads}")
    dim = fields.integer("head_dim", most=MAX_HEAD_DIM)
    if not dim and hidden % heads:
        raise fields.error("hidden_size", hidden, f"a multiple of {of_heads}")
    dim = dim or hidden // heads
    if dim % 2 or dim > MAX_HEAD_DIM:
        expected = "an even number" if dim % 2 else f"at most {MAX_HEAD_DIM}"
        raise fields.error("head_dim", dim, expected)
    name = (fields.key("head_dim") or "attention.key_length").replace("key", "value")
    if fields.kind == "gguf" and fields.keys.integer(name, dim) != dim:
        raise fields.keys.error(name, fields.keys.raw(name), f"the head size {dim}")
    return heads, kv_heads, dim


def _windows(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """Of each layer; none where windows are off."""
    window = _window(fields) if fields.flag("use_windows") else 0
    return tuple(window if each else 0 for each in _slides(fields, n_layers))


def _window(fields: Fields) -> int:
    """Tokens; 0 where it is null. Files of encoders count those on both sides."""
    window = 0 if fields.is_null("window") else fields.integer("window", least=0)
    return window // 2 + 1 if window and fields.family.block.both_ways else window


def _slides(fields: Fields, n_layers: int) -> list[bool]:
    """Of each layer: as said for each, or all from a first one on but every so many-th."""
    first = fields.integer("first_window", least=0)
    if fields.says("layer_types"):
        said = _CHUNKED if fields.family.block.chunked else _LAYER_TYPES[fields.kind]
        return [each == said[1] for each in fields.items("layer_types", said, n_layers)]
    if fields.family.block.chunked:
        plain = _said_without_rope(fields, n_layers)
        return [i not in plain for i in range(n_layers)]
    every, at = fields.integer("full_every"), 0 if fields.flag("full_first") else 1
    return [i >= first and (not every or (i + at) % every != 0) for i in range(n_layers)]


def _with_ropes(
    fields: Fields, layers: tuple[LayerSpec, ...], ropes: Mapping[str, RopeConfig]
) -> tuple[LayerSpec, ...]:
    """Layers that slide, and those without rope, may have one of their own."""
    plain, none = _without_rope(fields, layers), ROPE_STILL if ROPE_STILL in ropes else NO_ROPE
    windowed = ROPE_WINDOW if ROPE_WINDOW in ropes else ROPE
    names = [windowed if layer.window else ROPE for layer in layers]
    names = [none if i in plain else name for i, name in enumerate(names)]
    return tuple(replace(x, rope=name) for x, name in zip(layers, names, strict=True))


def _without_rope(fields: Fields, layers: tuple[LayerSpec, ...]) -> set[int]:
    """Layers of no rope: as said for each, or every so many-th; or those that do not slide; all
    where positions are learned, or the file says so."""
    if fields.flag("learned_positions") or not _has_rope(fields):
        return set(range(len(layers)))
    if fields.family.full_without_rope and _window(fields):
        return {i for i, layer in enumerate(layers) if not layer.window}
    return _said_without_rope(fields, len(layers))


def _said_without_rope(fields: Fields, n_layers: int) -> set[int]:
    """As said for each, or every so many-th."""
    every = fields.integer("no_rope_every")
    if fields.raw("rope_layers"):
        ropes = fields.items("rope_layers", (0, 1), n_layers)
        return {i for i, has_rope in enumerate(ropes) if not has_rope}
    return {i for i in range(n_layers) if every and (i + 1) % every == 0}


def _has_rope(fields: Fields) -> bool:
    """Folders say a word, GGUF files a flag."""
    if not fields.has("rope_kind"):
        return True
    if fields.kind == "gguf":
        return fields.flag("rope_kind")
    return fields.word("rope_kind", ("rope", "nope")) == "rope"


def _attention_scale(
    fields: Fields, layer: LayerSpec, n_layers: int, ropes: Mapping[str, RopeConfig]
) -> float:
    """One over the root of what the file says, or else of the head size; 0 without heads."""
    if not ropes:
        return 0.0
    dim = layer.head_dim if layer.latent is None else layer.latent.query_dim
    size = fields.number("query_scalar", least=1.0) or dim
    if fields.kind == "gguf" and n_layers == fields.family.wide_scale_layers:
        size = fields.integer("hidden_size") // layer.n_heads
    scale = (fields.number("attention_scale") or float(size**-0.5)) * ropes[ROPE].score_scale
    return scale * score_multiplier(fields)


def _residual_scale(fields: Fields, n_layers: int) -> float:
    """As said, or by a depth over the root of the layers."""
    depth = fields.number("residual_depth")
    return depth / n_layers**0.5 if depth else fields.number("residual_scale")


def _logit_divisor(fields: Fields, hidden: int) -> float:
    """As said, or the width over that of a base model."""
    base = fields.number("logit_base")
    return hidden / base if base else fields.number("logit_divisor", least=1e-9)


def _bias(fields: Fields, flag: str, tensors: TensorTable) -> bool:
    if not fields.of_tensors(flag):
        return fields.flag(flag)
    return tensor_name(fields.family, "gguf", f"layers.0.{_BIASES[flag]}.bias") in tensors


def _qk_norm(fields: Fields, tensors: TensorTable) -> str:
    """The family's, where its models may be without."""
    norm = fields.family.block.qk_norm
    if not fields.has("qk_norm"):
        return norm
    if not fields.of_tensors("qk_norm"):
        return norm if fields.flag("qk_norm") else "none"
    if norm == "bare":
        return "none" if fields.integer("n_experts") == fields.family.unnormed_experts else norm
    return norm if tensor_name(fields.family, "gguf", "layers.0.q_norm") in tensors else "none"


def _tied(fields: Fields, tensors: TensorTable) -> bool:
    if not fields.of_tensors("tied"):
        return fields.flag("tied")
    return tensor_name(fields.family, "gguf", "lm_head") not in tensors


def _vocab_size(fields: Fields, tensors: TensorTable) -> int:
    """In GGUF rows of the embedding: the metadata may leave out padding."""
    embed = tensors.get(tensor_name(fields.family, "gguf", "embed"))
    if fields.kind == "gguf" and embed is not None and len(embed.shape) == 2:
        return embed.shape[0]
    return fields.integer("vocab_size")
