"""Checks that a program means something, before anything runs it."""

from __future__ import annotations

from collections import Counter

from kvasir.core.errors import KvasirError
from kvasir.ir.builder import output_types
from kvasir.ir.layouts import LAYOUTS
from kvasir.ir.ops import OPS, ShapeError
from kvasir.ir.program import (
    DTYPES,
    KV_READERS,
    KV_WRITERS,
    STATE_OPS,
    SYMBOLS,
    Op,
    Program,
    Value,
)

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


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ProgramError(message)


def _check_signature(op: Op, where: str, stage: str) -> None:
    definition = OPS.get(op.kind)
    if definition is None:
        raise ProgramError(f"{where}: unknown op kind; known: {', '.join(sorted(OPS))}")
    _need(stage in definition.stages, f"{where}: not allowed in a {stage} program")
    _check_count(len(op.ins), definition.n_ins, f"{where}: inputs")
    _check_count(len(op.weights), definition.n_weights, f"{where}: weights")
    for name in sorted(definition.attrs.keys() - op.attrs.keys()):
        raise ProgramError(f"{where}: attribute {name} is missing")
    for name in sorted(op.attrs.keys() - definition.attrs.keys()):
        raise ProgramError(f"{where}: unknown attribute {name}")
    for name, kind in definition.attrs.items():
        value = op.attrs[name]
        wrong = f"{where}: attribute {name} is {value!r}, expected {kind.__name__}"
        _need(type(value) is kind, wrong)


def _check_count(n: int, bounds: tuple[int, int | None], what: str) -> None:
    least, most = bounds
    expected = f"{least} to {'any number' if most is None else most}"
    _need(least <= n and (most is None or n <= most), f"{what}: {n}, expected {expected}")


def _check_names(program: Program, op: Op, where: str, defined: dict[str, Value]) -> None:
    for name in op.ins:
        _need(name in defined, f"{where}: reads {name}, which no earlier op makes")
    for name in op.weights:
        _need(name in program.weights, f"{where}: weight {name} is not declared")
    for name in op.outs:
        _need(name not in defined, f"{where}: {name} is made twice")
        _need(name in program.values, f"{where}: {name} has no type")


def _check_types(program: Program, op: Op, where: str, defined: dict[str, Value]) -> None:
    try:
        types = output_types(op, defined, program.weights)
    except ShapeError as error:
        raise ProgramError(f"{where}: {error}") from None
    _need(len(types) == len(op.outs), f"{where}: {len(op.outs)} outputs, expected {len(types)}")
    for name, type_ in zip(op.outs, types, strict=True):
        value = program.values[name]
        _need(value.type == type_, f"{where}: {name} is {value.type}, the shape rule gives {type_}")
        symbols = [dim for dim in value.shape if isinstance(dim, str)]
        known = value.dtype in DTYPES and all(symbol in SYMBOLS for symbol in symbols)
        _need(known, f"{where}: {name} has an unknown dtype or symbol: {value.type}")
        defined[name] = value


def _check_table(program: Program, op: Op, where: str) -> None:
    names = [op.word(attr) for attr in ("table", "q_table") if attr in op.attrs]
    for name in names:
        table, rotary = program.constants.get(name), op.integer("rotary_dim")
        if table is None:
            raise ProgramError(f"{where}: constant {name} is not declared")
        fits = table.ndim == 2 and table.shape[1] == rotary
        _need(fits, f"{where}: table {name} is {table.shape}, expected [positions, {rotary}]")


def _check_outputs(program: Program, defined: dict[str, Value]) -> None:
    for name in program.outputs:
        _need(name in defined, f"{program.name}: output {name} is never made")
    read = {name for op in program.ops for name in op.ins} | set(program.outputs)
    for op in program.ops:
        if op.outs and read.isdisjoint(op.outs):
            raise ProgramError(f"{program.name}: {op.outs[0]} ({op.kind}) is made and never read")


def _check_weights(program: Program, stage: str) -> None:
    used = {name for op in program.ops for name in op.weights}
    for name, weight in program.weights.items():
        _need(name in used, f"{program.name}: weight {name} is declared and never used")
        _need(weight.name == name, f"{program.name}: weight {weight.name} is listed as {name}")
        placed = stage != "lowered" or weight.layout in LAYOUTS
        _need(placed, f"{program.name}: weight {name} has no layout")


def _check_kv(program: Program) -> None:
    specs = {spec.layer: spec for spec in program.kv}
    _need(len(specs) == len(program.kv), f"{program.name}: two KV specs for one layer")
    written: Counter[int] = Counter()
    for index, op in enumerate(program.ops):
        if op.kind not in (*KV_WRITERS, *KV_READERS, *STATE_OPS):
            continue
        layer, where = op.integer("layer"), f"{program.name}: op {index} ({op.kind})"
        spec = specs.get(layer)
        if spec is None:
            raise ProgramError(f"{where}: layer {layer} has no KV spec")
        _need(
            (op.kind in STATE_OPS) == (spec.kind == "state") == (spec.state_size > 0),
            f"{where}: layer {layer} keeps something else: {spec}",
        )
        if op.kind in STATE_OPS:
            written[layer] += 1
            continue
        heads = (spec.n_kv_heads, spec.head_dim) == op.integers("n_kv_heads", "head_dim")
        _need(heads, f"{where}: heads differ from the KV spec of layer {layer}: {spec}")
        if op.kind in KV_WRITERS:
            written[layer] += 1
            continue
        _need(
            written[layer] > 0,
            f"{where}: reads the cache of layer {layer} before this step wrote it",
        )
        window = op.integer("window")
        # What a token sees on both sides is computed with it: nothing leaves.
        kept = 0 if op.kind == "attention" and len(op.ins) > 1 else window
        latent = op.integer("latent") if op.kind == "latent_attention" else 0
        _need(latent == spec.latent, f"{where}: latents differ from the KV spec: {spec}")
        same = kept == spec.window and (spec.kind == "window") == (spec.window > 0)
        _need(same, f"{where}: window {window} differs from the KV spec: {spec}")
    for layer in specs:
        times = f"written {written[layer]} times, expected once"
        _need(written[layer] == 1, f"{program.name}: the cache of layer {layer} is {times}")
