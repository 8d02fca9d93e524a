"""Programs in the words of another vocabulary: they read and draw ids of a target."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from kvasir.ir.program import FloatArray, Op, Program, freeze
from kvasir.ir.rewrite import with_ops

OWN_IDS, TARGET_IDS = "own_ids", "target_ids"
"""Constants of such programs."""


class VocabMap(msgspec.Struct, frozen=True):
    """From the tokens of a target to those of its draft model, and back. Ids are whole numbers in
    float32, as all constants of programs are: exact below 2^24."""

    own: FloatArray
    """[tokens of the target] of each the draft model's id that stands for it."""
    of_target: FloatArray
    """[tokens of the draft model] of each the target's id; -1 where it has none."""


def in_target_ids(program: Program, ids: VocabMap) -> Program:
    """``program`` with the target's tokens in place of its own: shared ones alone are drawn."""
    named = "tokens.own"
    rename = Op("rename_tokens", ("tokens",), (named,), (), freeze({"ids": OWN_IDS}))
    ops = [_reading(op, "tokens", named) for op in program.ops]
    reading = _with(program, [rename, *ops], OWN_IDS, ids.own)
    return drawing_target_ids(reading, ids.of_target, len(ids.own))


def drawing_target_ids(program: Program, of_target: FloatArray, n_tokens: int) -> Program:
    """``program`` with ids of a target of ``n_tokens`` in place of those that it draws, as
    ``VocabMap`` has them."""
    attrs, ops = freeze({"ids": TARGET_IDS, "n_tokens": n_tokens}), []
    for op in program.ops:
        if op.kind == "sample":
            logits, placed = op.ins[0], f"{op.ins[0]}.placed"
            ops.append(Op("place_logits", (logits,), (placed,), (), attrs))
            op = _reading(op, logits, placed)
        ops.append(op)
    return _with(program, ops, TARGET_IDS, of_target)


def _reading(op: Op, name: str, other: str) -> Op:
    """``op`` with another value in place of one."""
    return replace(op, ins=tuple(other if x == name else x for x in op.ins))


def _with(program: Program, ops: Iterable[Op], name: str, constant: FloatArray) -> Program:
    constants = MappingProxyType({**program.constants, name: constant})
    return replace(with_ops(program, ops), constants=constants)
