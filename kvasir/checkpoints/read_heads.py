"""Heads from the files that their authors publish, and from checkpoints of their targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvasir.checkpoints.loaded import LoadedModel, weight_dtype
from kvasir.checkpoints.read import config_from
from kvasir.checkpoints.tensors import weight_of
from kvasir.config.resolved import ModelFacts
from kvasir.core.errors import ModelError, printable
from kvasir.formats.types import FORMATS, TensorInfo
from kvasir.ir.program import FloatArray, Program, Weight
from kvasir.models.heads import DraftHead, HeadLayout, is_of_target
from kvasir.models.spec import ModelConfig
from kvasir.weights.bind import Binding, bind
from kvasir.weights.source import ModelSource, open_model

_AUX = "eagle_aux_hidden_state_layer_ids"
_N_TAPS = 3
_INTEGERS = {"I64": "<i8", "I32": "<i4"}
_COPIES = ("d2t", "t2d", "embed_tokens.weight", "lm_head.weight")
"""Of the target's tensors, or read apart."""


class LoadedHead(DraftHead, frozen=True, kw_only=True):
    source: ModelSource
    """Of its tensors; the target's own where they lie beside its layers."""

    def weight(self, name: str, shape: tuple[int, ...]) -> Weight:
        """Where a weight of its program lies."""
        matrix = name.removesuffix(".bias")
        if matrix in self.layout.tensors:
            end = "weight" if matrix == name else "bias"
            return Weight(name, shape, (f"{self.layout.tensors[matrix]}.{end}",))
        if not name.startswith("layers."):
            return weight_of(self.target)(name, shape)
        found = weight_of(self.config)(name, shape)
        mark = "layers.0." if self.source.kind == "hf" else "blk.0."
        sources = tuple(self.layout.layer + x.partition(mark)[2] for x in found.sources)
        return replace(found, sources=sources)


def load_head(method: str, path: str | None, target: LoadedModel) -> LoadedHead:
    """``path``: a folder; None: of the target's own checkpoint (mtp). Raises ModelError, naming
    tensors and sizes, on what is no such head, or another target's."""
    if target.config.sees:
        raise ModelError(f"{_name(target.source)} sees images: heads draft for texts alone")
    if path is None:
        return _mtp(target)
    source = open_model(path)
    if source.kind == "gguf":
        raise ModelError(
            f"{source.path}: heads are read from folders (config.json and model.safetensors)"
        )
    head = (_eagle3 if method == "eagle3" else _eagle)(source, target)
    own, size = head.config.hidden_size, target.config.hidden_size
    if own != size:
        raise _other(source, target, f"it has rows of {own} numbers, the target {size}")
    return head


def head_facts(head: LoadedHead, target: LoadedModel) -> ModelFacts:
    """What planning needs to know of a head."""
    tensors = list(_tensors(head))
    layers = [(x.kv_vectors * x.head_dim, x.kv_vectors) for x in head.config.kv_layers]
    return ModelFacts(
        name=f"{_name(head.source)} ({head.method})",
        vocab_size=target.config.vocab_size,
        context_length=target.config.max_positions,
        kv_values_per_token=sum(n for n, _ in layers),
        weight_bytes=sum(info.data.nbytes for info in tensors),
        weight_dtype=weight_dtype({info.format for info in tensors if len(info.shape) > 1}),
        kv_vectors_per_token=sum(n for _, n in layers),
        windows=head.config.windows,
        kv_layers=tuple(layers) if head.config.windows else (),
        is_head=True,
    )


class _Parts(msgspec.Struct, frozen=True):
    name: str
    weights: Mapping[str, Weight]


def bind_head(head: LoadedHead, program: Program) -> Binding:
    """The weights of a head's program that are its own. Raises ModelError."""
    own = {name: x for name, x in program.weights.items() if name not in head.shared}
    of_checkpoint, features = head.method == "mtp", head.layout.tensors.get("features", "")
    read_apart = {*_COPIES, f"{features}.weight", f"{features}.bias"}
    return bind(
        _Parts(head.method, MappingProxyType(own)),
        head.source,
        lambda x: of_checkpoint or x in read_apart or x.endswith("rotary_emb.inv_freq"),
    )


def bind_features(head: LoadedHead, target: Program) -> Binding:
    """The weights of a head that the program of its target has. Raises ModelError."""
    own = {name: x for name, x in target.weights.items() if is_of_target(name)}
    return bind(_Parts(head.method, MappingProxyType(own)), head.source, lambda tensor: True)


def of_target_alone(program: Program) -> Program:
    """Without weights of a head, for who looks for the others."""
    own = {name: x for name, x in program.weights.items() if not is_of_target(name)}
    return replace(program, weights=MappingProxyType(own))


def _eagle(source: ModelSource, target: LoadedModel) -> LoadedHead:
    table = source.tensors
    if "d2t" in table or "midlayer.self_attn.q_proj.weight" in table:
        raise ModelError(f"{source.path} is an EAGLE-3 head: its method is eagle3")
    _need(source, "fc.weight", "layers.0.self_attn.q_proj.weight")
    config = _layer_config(source)
    has_norm = "layers.0.input_layernorm.weight" in table
    block = replace(config.block, embed_norm=not has_norm)
    embed = table.get("embed_tokens.weight")
    n_own, n = _rows(embed), target.config.vocab_size
    if embed is not None and n_own != n:
        raise _other(source, target, f"it has {n_own} tokens, the target {n}")
    layout = HeadLayout(MappingProxyType({"join": "fc"}), "layers.0.", bias="fc.bias" in table)
    config = replace(config, block=block)
    return LoadedHead("eagle", layout, config, target.config, source=source)


def _eagle3(source: ModelSource, target: LoadedModel) -> LoadedHead:
    table = source.tensors
    layer = next((x for x in ("midlayer.", "layers.0.") if f"{x}hidden_norm.weight" in table), None)
    if layer is None:
        raise ModelError(
            f"{source.path}: no tensor midlayer.hidden_norm.weight, which EAGLE-3 heads have: an "
            "EAGLE head has the method eagle"
        )
    tensors = {"features": "fc", "feature_norm": f"{layer}hidden_norm", "final_norm": "norm"}
    if "lm_head.weight" in table:
        own = {"lm_head": "lm_head", "embed": "embed_tokens"}
        tensors |= {name: x for name, x in own.items() if f"{x}.weight" in table}
    layout = HeadLayout(
        MappingProxyType(tensors),
        layer,
        norms=True,
        reads=True,
        feature_bias="fc.bias" in table,
    )
    return LoadedHead(
        "eagle3",
        layout,
        _layer_config(source),
        target.config,
        _taps(source, len(target.config.layers)),
        _ids(source, target),
        source=source,
    )


def _mtp(target: LoadedModel) -> LoadedHead:
    """Of several layers the first."""
    config, source = target.config, target.source
    n = len(config.layers)
    if not config.draft_layers:
        raise ModelError(f"{_name(source)} has no layers that guess further tokens (MTP)")
    last = config.layers[-1]
    ropes = {name: rope for name, rope in config.ropes.items() if name == last.rope}
    config = replace(config, layers=(last,), ropes=ropes, draft_layers=0)
    mark = "layers.0." if source.kind == "hf" else "blk.0."
    (first,) = weight_of(config)("layers.0.attn_norm", (config.hidden_size,)).sources
    layer = first.partition(mark)[0] + mark.replace("0", str(n))
    inner = layer if source.kind == "hf" else f"{layer}nextn."
    norm = "shared_head.norm" if source.kind == "hf" else "shared_head_norm"
    tensors = {
        "join": f"{inner}eh_proj",
        "token_norm": f"{inner}enorm",
        "feature_norm": f"{inner}hnorm",
        "final_norm": f"{inner}{norm}",
    }
    if f"{tensors['join']}.weight" not in source.tensors:
        others = next((x for x in source.tensors if x.startswith("mtp.")), None)
        why = f"{others} and its kin are not supported" if others else "the file came without them"
        raise ModelError(
            f"{source.path}: no tensor {tensors['join']}.weight of the layers that guess further "
            f"tokens (MTP): {why}"
        )
    layout = HeadLayout(MappingProxyType(tensors), layer, norms=True)
    return LoadedHead("mtp", layout, config, target.config, source=source)


def _layer_config(source: ModelSource) -> ModelConfig:
    """Of a head's layer, which is one of the family that its config names."""
    named = source.config.get("architectures")
    names = [str(x) for x in named] if isinstance(named, list) else []
    plain = [x.replace("Eagle3", "").replace("Eagle", "") for x in names]
    said = {**source.config, "architectures": plain or ["LlamaForCausalLM"]}
    config = config_from(dataclasses.replace(source, config=said))
    if len(config.layers) != 1 or not config.layers[0].attends or config.layers[0].experts:
        raise ModelError(
            f"{source.path}: config.json: {len(config.layers)} layers, expected one of attention "
            "and an MLP"
        )
    return config


def _taps(source: ModelSource, n_layers: int) -> tuple[int, ...]:
    """Layers behind which it reads: files count those before which they do."""
    inner = source.config.get("eagle_config")
    named = inner if isinstance(inner, Mapping) else source.config
    ids = named.get(_AUX) or [2, n_layers // 2, n_layers - 3]
    if not isinstance(ids, list) or not all(type(x) is int and 0 < x <= n_layers for x in ids):
        raise ModelError(f"{source.path}: {_AUX} is {ids}: the target has {n_layers} layers")
    found = tuple(sorted({x - 1 for x in ids}))
    if len(found) != _N_TAPS:
        raise ModelError(f"{source.path}: it reads behind {len(found)} layers, expected {_N_TAPS}")
    return found


def _ids(source: ModelSource, target: LoadedModel) -> FloatArray | None:
    """Of each of its own tokens the target's."""
    listed = {info.name: info for info in source.tensors.listing()}
    head, steps = listed.get("lm_head.weight"), listed.get("d2t")
    n = target.config.vocab_size
    own = n if head is None else _rows(head)
    if steps is None and own == n:
        return None
    if steps is None or steps.shape != (own,) or steps.format not in _INTEGERS:
        told = "missing" if steps is None else f"{steps.format} {list(steps.shape)}"
        raise ModelError(f"{source.path}: d2t is {told}, expected integers of {own} tokens")
    found = np.frombuffer(steps.data, _INTEGERS[steps.format])
    ids: NDArray[np.int64] = np.arange(own, dtype=np.int64) + found.astype(np.int64)
    if len(set(ids.tolist())) != own or ids.min() < 0 or ids.max() >= n:
        raise _other(source, target, f"d2t names tokens up to {ids.max()} of {n}, or some twice")
    return ids.astype(np.float32)


def _tensors(head: LoadedHead) -> Iterable[TensorInfo]:
    """Those that it reads."""
    names = {f"{x}.weight" for x in head.layout.tensors.values()}
    for info in head.source.tensors.listing():
        is_own = info.name in names or info.name.startswith(head.layout.layer)
        if is_own and info.format in FORMATS:
            yield info


def _rows(matrix: TensorInfo | None) -> int:
    return matrix.shape[0] if matrix is not None and matrix.shape else 0


def _need(source: ModelSource, *names: str) -> None:
    if missing := [name for name in names if name not in source.tensors]:
        raise ModelError(f"{source.path}: no tensor {', '.join(missing)}: it is no EAGLE head")


def _other(source: ModelSource, target: LoadedModel, why: str) -> ModelError:
    return ModelError(
        f"{source.path} is no head of {_name(target.source)}: {why}. Take one that was made for "
        "this model"
    )


def _name(source: ModelSource) -> str:
    return printable(source.name)
