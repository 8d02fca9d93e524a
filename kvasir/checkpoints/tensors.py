"""Where each weight lies in a model file: tensor names, and the steps from tensor to weight."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from functools import partial
from itertools import takewhile

from msgspec.structs import replace

from kvasir.checkpoints.label_heads import HEAD_TENSORS
from kvasir.checkpoints.qkv import with_qkv
from kvasir.checkpoints.read_latent import HEAD_PARTS
from kvasir.ir.builder import WeightMaker
from kvasir.ir.program import Program, Transform, Weight
from kvasir.models.decoder import record_program
from kvasir.models.export import NO_EXPORT, Export
from kvasir.models.families import FAMILIES
from kvasir.models.family import Family, TensorNames
from kvasir.models.multiplier_spec import Multipliers
from kvasir.models.spec import MAX_LAYERS, LayerSpec, ModelConfig, ScanSpec
from kvasir.weights.transforms import (
    DELTA_ROWS,
    GROUPED_QKV,
    HALVES_OF_HEADS,
    MATRICES,
    QKV,
    SCAN_ROWS,
)

MAX_STREAMS = 1 + len(MATRICES)
"""Released models have as many."""
_TOP = (
    *("embed", "types", "positions", "embed_norm", "final_norm", "lm_head"),
    *("layer_embed", "layer_proj", "layer_proj_norm"),
    *(f"stream_{x}{i}" for x in ("in", "out") for i in range(1, MAX_STREAMS)),
)
"""Weights of the whole model, not of a layer."""
_WRITTEN = ("k", "v", "k_norm")
_DRAFTS = ("model.mtp_", "mtp.")
"""Begin names of tensors that guess further tokens."""
_MASKS = tuple(f".{x}.{y}" for x in ("attn", "attention") for y in ("bias", "masked_bias"))
_IGNORABLE = (
    *(".rotary_emb.inv_freq", "rope_freqs.weight"),
    *("rope_factors_long.weight", "rope_factors_short.weight"),
    *("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"),
    *_MASKS,
)
"""Ends of names of tensors that hold nothing the program needs."""


_WHOLE_KV = {
    "k_up": TensorNames("", "attn_kv_b", gguf_step="head_keys"),
    "v_up": TensorNames("", "attn_kv_b", gguf_step="head_values"),
}
"""Names in GGUF files that have the matrices of keys and values of latents in one tensor."""
_BASES = ("", "model.", "bert.", "roberta.", "language_model.model.", "model.language_model.")
"""What stands before names of tensors of a model without its head, in folders of one with a head
and without, alone or as a part of one that sees."""


def build_program(
    config: ModelConfig, *, max_positions: int | None = None, export: Export = NO_EXPORT
) -> Program:
    """The raw program of a model, with its weights where the files have them."""
    return record_program(config, weight_of(config), max_positions=max_positions, export=export)


def weight_of(config: ModelConfig) -> WeightMaker:
    """How a model's family finds a weight in this kind of file; raises KeyError for a name that the
    family does not have."""
    return partial(_weight, config, _family(config))


def ignorable(config: ModelConfig) -> Callable[[str], bool]:
    """Says of a tensor whether programs may leave it unread: derived values, a copy of the tied
    embedding, a tower, what guesses further tokens, or what makes labels and vectors
    (``text.heads``)."""
    family = _family(config)
    unread = {*HEAD_TENSORS, *_unwritten(config, family)}
    if config.streams is not None and not config.streams.scaled:
        parts = (f"layers.{i}.stream_scale" for i in range(len(config.layers)))
        unread |= {tensor_name(family, config.kind, part, config.base) for part in parts}
    if config.tied:
        unread.add(tensor_name(family, config.kind, "lm_head", config.base))

    def is_ignorable(tensor: str) -> bool:
        is_draft = tensor.startswith(_DRAFTS) or _is_draft_layer(config, family, tensor)
        is_apart = is_draft or tensor.startswith(family.tower_tensors)
        return is_apart or tensor in unread or tensor.endswith(_IGNORABLE)

    return is_ignorable


def _unwritten(config: ModelConfig, family: Family) -> Iterator[str]:
    """Keys and values in layers that read those of another one."""
    for i, layer in enumerate(config.layers):
        if layer.source is not None:
            for part in (f"layers.{i}.{x}{end}" for x in _WRITTEN for end in ("", ".bias")):
                yield tensor_name(family, config.kind, part, config.base)


def _is_draft_layer(config: ModelConfig, family: Family, tensor: str) -> bool:
    """Of those behind the layers of the model."""
    _, found, rest = f".{tensor}".partition(f"{_layers(family, config.kind)}.")
    layer, first = rest.partition(".")[0], len(config.layers)
    is_number = bool(found) and layer.isdecimal() and len(layer) <= len(str(MAX_LAYERS))
    return is_number and first <= int(layer) < first + config.draft_layers


def _layers(family: Family, kind: str) -> str:
    """Before the number of a layer."""
    return family.hf_layers if kind == "hf" else "blk"


def base_of(family: Family, kind: str, tensors: Container[str]) -> str:
    """What stands before names of tensors of a folder without their head: the family's own, or
    another with which its embedding is found."""
    own = _own_base(family)
    names = {base: tensor_name(family, kind, "embed", base) for base in (own, *_BASES)}
    return next((base for base, name in names.items() if name in tensors), own)


def _own_base(family: Family) -> str:
    """What names of the embedding and of layers begin with: "model."."""
    both = zip(family.hf_layers.split("."), family.tensors["embed"].hf.split("."), strict=False)
    return "".join(f"{a}." for a, _ in takewhile(lambda pair: pair[0] == pair[1], both))


def _with_base(family: Family, name: str, base: str) -> str:
    """``base`` in place of the family's own; where it ends so, its rest stands before all."""
    own = _own_base(family)
    if name.startswith(own):
        return base + name.removeprefix(own)
    return base.removesuffix(own) + name if base.endswith(f".{own}") else name


def tensor_name(family: Family, kind: str, weight: str, base: str | None = None) -> str:
    """Of a weight "embed", "layers.3.q" or "layers.3.q.bias"; {e} stands for an expert. ``base``:
    as by ``base_of``, else the family's own."""
    prefix, part = "", weight
    if weight.startswith("layers."):
        _, layer, part = weight.split(".", 2)
        prefix = f"{_layers(family, kind)}.{layer}."
    matrix = part.removesuffix(".bias")
    names, end = family.tensors[matrix], "weight" if matrix == part else "bias"
    name = prefix + (names.hf if kind == "hf" else names.gguf)
    name = name.removesuffix(".") if name.endswith(".") else f"{name}.{end}"
    return name if base is None or kind != "hf" else _with_base(family, name, base)


def tensor_kinds(family: Family, kind: str) -> set[str]:
    """All tensors that models of the family may have, {} for each number."""
    parts = [f"layers.{{}}.{x}" if x not in _TOP else x for x in family.tensors]
    parts += [f"{x}.bias" for x in parts if not x.endswith(("norm", *_TOP))]
    if family.block.norm == "layer_bias":
        parts += [f"{x}.bias" for x in parts if x.endswith("norm")]
    if "head_bias" in family.fields:
        parts.append("lm_head.bias")
    names = [tensor_name(family, kind, part).replace("{e}", "{}") for part in parts]
    return {each for name in names for each in _each_of_qkv(name)}


def _weight(config: ModelConfig, family: Family, name: str, shape: tuple[int, ...]) -> Weight:
    template = tensor_name(family, config.kind, name, config.base)
    part, sources, spec = name, [template], config.layers[0]
    if name.startswith("layers."):
        _, layer, part = name.split(".", 2)
        spec = config.layers[int(layer)]
        if spec.experts is not None and "{e}" in template:
            sources = [template.replace("{e}", str(e)) for e in range(spec.experts.n_experts)]
    sources = [each for source in sources for each in _each_of_qkv(source)]
    names = family.tensors[part.removesuffix(".bias")]
    step = names.hf_step if config.kind == "hf" else names.gguf_step
    transforms = (Transform(each, _args(each, shape[0], config, spec)) for each in step.split())
    return Weight(name, shape, tuple(sources), tuple(transforms))


def _each_of_qkv(name: str) -> tuple[str, ...]:
    return tuple(name.replace("{qkv}", x) for x in "qkv") if "{qkv}" in name else (name,)


def _args(step: str, rows: int, config: ModelConfig, spec: LayerSpec) -> tuple[int | float, ...]:
    """Of a step to a weight of so many rows."""
    if step in _OF_MODEL:
        return _of_model(step, rows, config)
    if step in QKV:
        q, kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        return (0, q, q + kv)[QKV.index(step) % 3], rows, q + 2 * kv
    if step in HEAD_PARTS and spec.latent is not None:
        return HEAD_PARTS[step](spec.latent)
    if step in HALVES_OF_HEADS:
        n = spec.head_dim if spec.scan is None else spec.scan.n_heads // spec.scan.n_groups
        return HALVES_OF_HEADS.index(step) * n, n, 2 * n
    if spec.scan is not None and step in ("flat", "scaled_parts", *SCAN_ROWS, *DELTA_ROWS):
        return _of_scan(step, spec.scan, config.multipliers)
    if step in GROUPED_QKV:
        return GROUPED_QKV.index(step), spec.n_heads, spec.n_kv_heads, spec.head_dim
    return (rows // (spec.head_dim or rows),) if step == "permute_rope" else ()


_OF_MODEL = ("repeated", "joined", "last_rows", *MATRICES)
"""Steps that ask for nothing of a layer."""


def _of_model(step: str, rows: int, config: ModelConfig) -> tuple[int, ...]:
    if step in MATRICES:
        return MATRICES.index(step), (config.streams.n if config.streams else MAX_STREAMS) - 1
    if step == "last_rows":
        return config.first_position, rows, config.first_position + rows
    return (rows if step == "repeated" else len("qkv"),)


def _of_scan(step: str, scan: ScanSpec, factors: Multipliers) -> tuple[int | float, ...]:
    """First row, rows and all rows of a tensor: the gate, what the scan reads, the steps; or what
    each group has of it; or its parts and their factors."""
    if step == "flat":
        return (scan.n_groups,)
    if step == "scaled_parts":
        return scan.inner, scan.vectors, *factors.scan_columns
    if step in DELTA_ROWS:
        return DELTA_ROWS.index(step), scan.n_groups, scan.state_dim, scan.inner // scan.n_groups
    which = SCAN_ROWS.index(step)
    sizes = (scan.inner, scan.columns, scan.n_heads)
    return sum(sizes[:which]), sizes[which], sum(sizes)


def _family(config: ModelConfig) -> Family:
    family = with_qkv(next(x for x in FAMILIES if x.name == config.family), config.fused_qkv)
    latent = config.layers[0].latent
    if latent is not None and latent.whole:
        family = replace(family, tensors={**family.tensors, **_WHOLE_KV})
    return family
