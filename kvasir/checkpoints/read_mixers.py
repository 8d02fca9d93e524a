"""What stands in place of attention: which layers have a convolution or a scan, and its sizes."""

from __future__ import annotations

from kvasir.checkpoints.fields import Fields
from kvasir.checkpoints.read_parts import SCAN, read_parts
from kvasir.checkpoints.tensors import tensor_name
from kvasir.formats.mapped import TensorTable
from kvasir.ir.ops.scan import MAX_STATE_DIM, RULES
from kvasir.ir.ops.state import MAX_TAPS
from kvasir.models.spec import MAX_HEAD_DIM, ScanSpec

_ATTENTION = ("full_attention", "attention")
_CONVOLUTIONS, _SCANS = ("conv",), ("mamba", "linear_attention")
MAX_SCAN_HEADS = 1024


def read_taps(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """Of each layer's short convolution; 0 where there is none."""
    if not fields.has("n_taps"):
        return (0,) * n_layers
    n_taps = fields.integer("n_taps", least=2, most=MAX_TAPS)
    return tuple(0 if attends else n_taps for attends in _attends(fields, n_layers))


def read_scans(fields: Fields, tensors: TensorTable, n_layers: int) -> tuple[ScanSpec | None, ...]:
    """Of each layer; None where there is none."""
    if not fields.has("scan_rule"):
        return (None,) * n_layers
    scan = _scan(fields, tensors, n_layers)
    if fields.flag("scan_beside"):
        return (scan,) * n_layers
    if parts := read_parts(fields):
        return tuple(scan if part == SCAN else None for part in parts)
    return tuple(None if attends else scan for attends in _attends(fields, n_layers))


def read_kv_heads(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """Of each layer; one that does not attend is said to have as many as the others."""
    if fields.flag("scan_beside") or not (fields.has("n_taps") or fields.has("scan_rule")):
        return fields.integers("n_kv_heads", n_layers)
    return (fields.of_some("n_kv_heads"),) * n_layers


def _scan(fields: Fields, tensors: TensorTable, n_layers: int) -> ScanSpec:
    heads = fields.integer("scan_heads", most=MAX_SCAN_HEADS)
    groups = fields.integer("scan_groups", most=MAX_SCAN_HEADS)
    of_heads = f"{fields.key('scan_heads')} = {heads}"
    if heads % groups:
        raise fields.error("scan_groups", groups, f"a divisor of {of_heads}")
    fields.word("scan_act" if fields.has("scan_act") else "act", ("silu",))
    least, most = _step_limits(fields)
    return ScanSpec(
        rule=fields.word("scan_rule", RULES),
        n_heads=heads,
        head_dim=_head_dim(fields, heads),
        n_groups=groups,
        state_dim=fields.integer("state_dim", most=MAX_STATE_DIM),
        n_taps=fields.integer("scan_taps", least=2, most=MAX_TAPS),
        conv_bias=_conv_bias(fields, tensors, n_layers),
        least=least,
        most=most,
        tiled=fields.flag("tiled_heads"),
        norm=_norm(fields, tensors),
        low_rank=fields.integer("scan_rank", least=0, most=MAX_HEAD_DIM),
        apart="scan_q" in fields.family.tensors,
    )


def _norm(fields: Fields, tensors: TensorTable) -> str:
    """Of what the gate gives, in a family that does not say whether there is one."""
    if fields.of_tensors("scan_normed"):
        has_norm = tensor_name(fields.family, "gguf", "layers.0.scan_norm") in tensors
    else:
        has_norm = fields.flag("scan_normed")
    if not has_norm:
        return "none"
    return "plain" if fields.flag("scan_norm_first") else "gated"


def _head_dim(fields: Fields, heads: int) -> int:
    """As said, and as follows from the width of all heads, where files say that, too."""
    said = 0 if fields.is_null("scan_inner") else fields.integer("scan_inner")
    inner = said or _expanded(fields)
    if inner and inner % heads:
        name = "scan_inner" if said else "scan_expand"
        expected = f"{inner} columns in {fields.key('scan_heads')} = {heads} equal heads"
        raise fields.error(name, fields.raw(name), expected)
    if inner and fields.raw("scan_head_dim") in (None, "auto"):
        return inner // heads
    dim = fields.integer("scan_head_dim", most=MAX_HEAD_DIM)
    if inner and dim * heads != inner:
        raise fields.error("scan_head_dim", dim, f"{inner // heads}, {inner} by {heads}")
    return dim


def _expanded(fields: Fields) -> int:
    return int(fields.number("scan_expand") * fields.integer("hidden_size"))


def _step_limits(fields: Fields) -> tuple[float, float]:
    said = fields.raw("step_limits")
    if said is None:
        return 0.0, float("inf")
    kinds = (int, float)
    is_pair = isinstance(said, list) and len(said) == 2 and all(type(x) in kinds for x in said)
    if not is_pair or not 0 <= said[0] <= said[1]:
        raise fields.error("step_limits", said, "a least and a most time step")
    return float(said[0]), float(said[1])


def _conv_bias(fields: Fields, tensors: TensorTable, n_layers: int) -> bool:
    if not fields.of_tensors("conv_bias"):
        return fields.flag("conv_bias")
    names = (f"layers.{i}.conv_bias" for i in range(n_layers))
    return any(tensor_name(fields.family, "gguf", name) in tensors for name in names)


def _attends(fields: Fields, n_layers: int) -> list[bool]:
    """As said for each layer, or by a list of those that do; else all, or none in a family without
    attention."""
    if not fields.has("n_heads"):
        return [False] * n_layers
    if fields.has("attention_every"):
        return _by_interval(fields, n_layers)
    if fields.kind == "gguf":
        return [count != 0 for count in _listed_heads(fields, n_layers)]
    if fields.says("mixers") or not fields.has("attention_layers"):
        others = _CONVOLUTIONS if fields.has("n_taps") else _SCANS
        known = (*_ATTENTION, *others)
        return [kind in _ATTENTION for kind in fields.items("mixers", known, n_layers)]
    listed = fields.layers("attention_layers")
    if listed is None and fields.has("scan_rule"):
        raise fields.error("mixers", None, "which layers attend, or a list of them")
    if listed is None:
        return [True] * n_layers
    first = fields.integer("first_layer", least=0)
    return [first + i in listed for i in range(n_layers)]


def _by_interval(fields: Fields, n_layers: int) -> list[bool]:
    """As said for each layer, or every so many-th. GGUF files say which layers are recurrent, those
    that guess further tokens among them."""
    every = fields.integer("attention_every")
    if not fields.says("mixers"):
        return [(i + 1) % every == 0 for i in range(n_layers)]
    if fields.kind == "hf":
        known = (*_ATTENTION, *_SCANS)
        return [kind in _ATTENTION for kind in fields.items("mixers", known, n_layers)]
    n_said = n_layers + fields.integer("draft_layers", least=0)
    said = fields.items("mixers", (False, True), n_said)
    return [not is_recurrent for is_recurrent in said[:n_layers]]


def _listed_heads(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """One number stands for all layers."""
    count = fields.of_some("n_kv_heads")
    if not isinstance(fields.raw("n_kv_heads"), list | tuple):
        return (count,) * n_layers
    return fields.items("n_kv_heads", (0, count), n_layers)
