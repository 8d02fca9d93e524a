"""Checks that a program means something, before anything runs it."""

from __future__ import annotations

from collections import Counter

from kvasir.core.errors import KvasirError
from kvasir.ir.builder import output_types
from kvasir.ir.layouts import LAYOUTS
from kvasir.ir.ops import OPS, OpDef, ShapeError
from kvasir.ir.program import DTYPES, KV_WRITERS, SYMBOLS, Op, Program, Value

STAGES = ("raw", "lowered")


class ProgramError(KvasirError):
    """A program that breaks a rule; the message names the op or value."""

    code = "program_error"


def verify(program: Program, stage: str) -> None:
    """Raises ProgramError on the first broken rule.

    ``stage``: "raw" as recorded, "lowered" after the passes.
    """
    if stage not in STAGES:
        raise ValueError(f"stage {stage!r}: expected one of {', '.join(STAGES)}")
    defined: dict[str, Value] = {name: program.values[name] for name in program.inputs}
    for index, op in enumerate(program.ops):
        where = f"{program.name}: op {index} ({op.kind} -> {', '.join(op.outs) or 'nothing'})"
        _check_signature(op, where, stage)
        _check_names(program, op, where, defined)
        _check_types(program, op, where, defined)
        _check_table(program, op, where)
    _check_outputs(program, defined)
    _check_weights(program, stage)
    _check_kv(program)


def _fail(message: str) -> None:
    raise ProgramError(message)


def _check_signature(op: Op, where: str, stage: str) -> None:
    definition = OPS.get(op.kind)
    if definition is None:
        raise ProgramError(f"{where}: unknown op kind; known: {', '.join(sorted(OPS))}")
    if stage not in definition.stages:
        _fail(f"{where}: not allowed in a {stage} program")
    _check_count(len(op.ins), definition.n_ins, f"{where}: inputs")
    _check_count(len(op.weights), definition.n_weights, f"{where}: weights")
    _check_attrs(op, definition, where)


def _check_count(n: int, bounds: tuple[int, int | None], what: str) -> None:
    least, most = bounds
    if n < least or (most is not None and n > most):
        _fail(f"{what}: {n}, expected {least} to {'any number' if most is None else most}")


def _check_attrs(op: Op, definition: OpDef, where: str) -> None:
    for name in sorted(definition.attrs.keys() - op.attrs.keys()):
        _fail(f"{where}: attribute {name} is missing")
    for name in sorted(op.attrs.keys() - definition.attrs.keys()):
        _fail(f"{where}: unknown attribute {name}")
    for name, kind in definition.attrs.items():
        if type(op.attrs[name]) is not kind:
            _fail(f"{where}: attribute {name} is {op.attrs[name]!r}, expected {kind.__name__}")


def _check_names(program: Program, op: Op, where: str, defined: dict[str, Value]) -> None:
    for name in op.ins:
        if name not in defined:
            _fail(f"{where}: reads {name}, which no earlier op makes")
    for name in op.weights:
        if name not in program.weights:
            _fail(f"{where}: weight {name} is not declared")
    for name in op.outs:
        if name in defined:
            _fail(f"{where}: {name} is made twice")
        if name not in program.values:
            _fail(f"{where}: {name} has no type")


def _check_types(program: Program, op: Op, where: str, defined: dict[str, Value]) -> None:
    try:
        types = output_types(op, defined, program.weights)
    except ShapeError as error:
        raise ProgramError(f"{where}: {error}") from None
    if len(types) != len(op.outs):
        _fail(f"{where}: {len(op.outs)} outputs, expected {len(types)}")
    for name, type_ in zip(op.outs, types, strict=True):
        value = program.values[name]
        if value.type != type_:
            _fail(f"{where}: {name} is {value.type}, the shape rule gives {type_}")
        symbols = [dim for dim in value.shape if isinstance(dim, str)]
        if value.dtype not in DTYPES or any(symbol not in SYMBOLS for symbol in symbols):
            _fail(f"{where}: {name} has an unknown dtype or symbol: {value.type}")
        defined[name] = value


def _check_table(program: Program, op: Op, where: str) -> None:
    if "table" not in op.attrs:
        return
    table = program.constants.get(op.word("table"))
    if table is None:
        raise ProgramError(f"{where}: constant {op.word('table')} is not declared")
    if table.ndim != 2 or table.shape[1] != op.integer("rotary_dim"):
        expected = f"[positions, {op.integer('rotary_dim')}]"
        _fail(f"{where}: table {op.word('table')} is {table.shape}, expected {expected}")


def _check_outputs(program: Program, defined: dict[str, Value]) -> None:
    for name in program.outputs:
        if name not in defined:
            _fail(f"{program.name}: output {name} is never made")
    read = {name for op in program.ops for name in op.ins} | set(program.outputs)
    for op in program.ops:
        for name in op.outs:
            if name not in read and not any(out in read for out in op.outs):
                _fail(f"{program.name}: {name} ({op.kind}) is made and never read")


def _check_weights(program: Program, stage: str) -> None:
    used = {name for op in program.ops for name in op.weights}
    for name, weight in program.weights.items():
        if name not in used:
            _fail(f"{program.name}: weight {name} is declared and never used")
        if weight.name != name:
            _fail(f"{program.name}: weight {weight.name} is listed as {name}")
        if stage == "lowered" and weight.layout not in LAYOUTS:
            _fail(f"{program.name}: weight {name} has no layout")


def _check_kv(program: Program) -> None:
    specs = {spec.layer: spec for spec in program.kv}
    if len(specs) != len(program.kv):
        _fail(f"{program.name}: two KV specs for one layer")
    written: Counter[int] = Counter()
    for index, op in enumerate(program.ops):
        if op.kind not in (*KV_WRITERS, "attention"):
            continue
        layer, where = op.integer("layer"), f"{program.name}: op {index} ({op.kind})"
        spec = specs.get(layer)
        if spec is None:
            raise ProgramError(f"{where}: layer {layer} has no KV spec")
        if (spec.n_kv_heads, spec.head_dim) != (op.integer("n_kv_heads"), op.integer("head_dim")):
            _fail(f"{where}: heads differ from the KV spec of layer {layer}: {spec}")
        if op.kind in KV_WRITERS:
            written[layer] += 1
        elif not written[layer]:
            _fail(f"{where}: reads the cache of layer {layer} before this step wrote it")
        elif op.integer("window") != spec.window or (spec.kind == "window") != (spec.window > 0):
            _fail(f"{where}: window {op.integer('window')} differs from the KV spec: {spec}")
    for layer in specs:
        if written[layer] != 1:
            times = f"{written[layer]} times, expected once"
            _fail(f"{program.name}: the cache of layer {layer} is written {times}")
