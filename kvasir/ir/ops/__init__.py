"""The op list: each definition states signature, shape rule, NumPy reference and cost."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kvasir.ir.ops import (
    attention,
    latent,
    linear,
    moe,
    places,
    products,
    rows,
    scan,
    state,
    streams,
    vocabularies,
)
from kvasir.ir.ops.base import OpDef
from kvasir.ir.ops.checks import ShapeError
from kvasir.ir.ops.types import Call, Cost, Env, KvView, Rows, Sizes

_MODULES = (
    *(linear, rows, attention, places, latent),
    *(moe, products, state, scan, streams, vocabularies),
)
OPS: Mapping[str, OpDef] = MappingProxyType(
    {op.kind: op for module in _MODULES for op in module.DEFS}
)

__all__ = ["OPS", "Call", "Cost", "Env", "KvView", "OpDef", "Rows", "ShapeError", "Sizes"]
