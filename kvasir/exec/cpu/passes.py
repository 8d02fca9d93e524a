"""The native executor's pipeline of program transformations."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from kvasir.exec.cpu.place_weights import place_weights
from kvasir.ir.fuse import fuse
from kvasir.ir.numerics import MAX_ACT_BLOCK
from kvasir.ir.program import Program
from kvasir.ir.verify import verify


def lower_passes(
    program: Program,
    *,
    dtype: str,
    formats: Mapping[str, str],
    act_block: int | None = None,
    kv_dtype: str | None = None,
) -> Program:
    """Raw program -> fused program with layouts, verified.

    ``dtype`` auto, bfloat16 or float32; ``formats`` file format of each weight; ``act_block`` most
    activations that share a scale (``MAX_ACT_BLOCK``); ``kv_dtype`` one of ``KV_TYPES``, by default
    f32 with float32 and bf16 else.
    """
    verify(program, "raw")
    fused = fuse(program)
    placed = place_weights(
        fused, dtype=dtype, formats=formats, act_limit=act_block or MAX_ACT_BLOCK
    )
    cache = kv_dtype or ("f32" if dtype == "float32" else "bf16")
    kv = tuple(spec if spec.state_size else replace(spec, dtype=cache) for spec in placed.kv)
    lowered = replace(placed, kv=kv)
    verify(lowered, "lowered")
    return lowered
