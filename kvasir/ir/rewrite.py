"""Tools of the passes: who makes a value, who uses it, and a program with other ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from kvasir.ir.builder import output_types
from kvasir.ir.program import Op, Program, Value, Weight


class Graph(msgspec.Struct, frozen=True):
    """Indexes over ops: the op that makes each value, and the ops that read it."""

    makers: Mapping[str, int]
    users: Mapping[str, tuple[int, ...]]
    outputs: frozenset[str]

    def single_user(self, value: str) -> int | None:
        """The op that alone reads the value, if nothing else needs it."""
        if value in self.outputs:
            return None
        users = self.users.get(value, ())
        return users[0] if len(users) == 1 else None


def graph(program: Program) -> Graph:
    users: dict[str, tuple[int, ...]] = {}
    for index, op in enumerate(program.ops):
        for name in op.ins:
            users[name] = (*users.get(name, ()), index)
    makers = {name: index for index, op in enumerate(program.ops) for name in op.outs}
    return Graph(makers, users, frozenset(program.outputs))


def with_ops(
    program: Program, ops: Iterable[Op], weights: Mapping[str, Weight] | None = None
) -> Program:
    """The program with these ops: values are inferred again, unused weights dropped."""
    ops = tuple(ops)
    table = program.weights if weights is None else weights
    values: dict[str, Value] = {name: program.values[name] for name in program.inputs}
    for op in ops:
        for name, type_ in zip(op.outs, output_types(op, values, table), strict=True):
            values[name] = Value(name, *type_)
    used = dict.fromkeys(name for op in ops for name in op.weights)
    kept = MappingProxyType({name: table[name] for name in used})
    return replace(program, ops=ops, values=MappingProxyType(values), weights=kept)


@dataclass(slots=True)
class Edit:
    """Ops to drop and ops to put before others; ``apply`` makes the new program."""

    program: Program
    drop: set[int] = field(default_factory=set)
    before: dict[int, list[Op]] = field(default_factory=dict)

    def replace(self, index: int, *ops: Op) -> None:
        self.drop.add(index)
        self.before.setdefault(index, []).extend(ops)

    def apply(self) -> Program:
        if not self.drop and not self.before:
            return self.program
        ops: list[Op] = []
        for index, op in enumerate(self.program.ops):
            ops.extend(self.before.get(index, ()))
            if index not in self.drop:
                ops.append(op)
        return with_ops(self.program, ops)
