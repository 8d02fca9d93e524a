"""Checks that a program means something, before anything runs it."""

from __future__ import annotations

from collections import Counter

from kvasir.core.errors import KvasirError
from kvasir.ir.builder import output_types
from kvasir.ir.ops import OPS, ShapeError
from kvasir.ir.ops.checks import width
from kvasir.ir.program import (
    DTYPES,
    KV_READERS,
    KV_WRITERS,
    OPTIONAL_ATTRS,
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
        _check_tables(program, op, where)
        _check_ids(program, op, where)
    _check_outputs(program, defined)
    _check_weights(program, stage)
    _check_kv(program)


def _need(condition: bool, message: str, *of: object) -> None:
    """``message.format(*of)``, of which a start pays nothing: a program has thousands of rules."""
    if not condition:
        raise ProgramError(message.format(*of))


def _check_signature(op: Op, where: str, stage: str) -> None:
    definition = OPS.get(op.kind)
    if definition is None:
        raise ProgramError(f"{where}: unknown op kind; known: {', '.join(sorted(OPS))}")
    _need(stage in definition.stages, "{}: not allowed in a {} program", where, stage)
    _check_count(len(op.ins), definition.n_ins, where, "inputs")
    _check_count(len(op.weights), definition.n_weights, where, "weights")
    for name in sorted(definition.attrs.keys() - op.attrs.keys() - OPTIONAL_ATTRS):
        raise ProgramError(f"{where}: attribute {name} is missing")
    for name in sorted(op.attrs.keys() - definition.attrs.keys()):
        raise ProgramError(f"{where}: unknown attribute {name}")
    for name, value in op.attrs.items():
        kind = definition.attrs[name]
        wrong = "{}: attribute {} is {!r}, expected {.__name__}"
        _need(type(value) is kind, wrong, where, name, value, kind)


def _check_count(n: int, bounds: tuple[int, int | None], where: str, what: str) -> None:
    least, most = bounds
    end = "any number" if most is None else most
    fits = least <= n and (most is None or n <= most)
    _need(fits, "{}: {}: {}, expected {} to {}", where, what, n, least, end)


def _check_names(program: Program, op: Op, where: str, defined: dict[str, Value]) -> None:
    for name in op.ins:
        _need(name in defined, "{}: reads {}, which no earlier op makes", where, name)
    for name in op.weights:
        _need(name in program.weights, "{}: weight {} is not declared", where, name)
    for name in op.outs:
        _need(name not in defined, "{}: {} is made twice", where, name)
        _need(name in program.values, "{}: {} has no type", where, name)


def _check_types(program: Program, op: Op, where: str, defined: dict[str, Value]) -> None:
    try:
        types = output_types(op, defined, program.weights)
    except ShapeError as error:
        raise ProgramError(f"{where}: {error}") from None
    n, expected = len(op.outs), len(types)
    _need(n == expected, "{}: {} outputs, expected {}", where, n, expected)
    for name, type_ in zip(op.outs, types, strict=True):
        value = program.values[name]
        wrong = "{}: {} is {}, the shape rule gives {}"
        _need(value.type == type_, wrong, where, name, value.type, type_)
        symbols = [dim for dim in value.shape if isinstance(dim, str)]
        known = value.dtype in DTYPES and all(symbol in SYMBOLS for symbol in symbols)
        wrong = "{}: {} has an unknown dtype or symbol: {}"
        _need(known, wrong, where, name, value.type)
        defined[name] = value


_TABLES = {"table": (2, "rotary_dim"), "q_table": (2, "rotary_dim"), "slopes": (1, "n_heads")}
"""By attributes that name a constant: its axes, and the attribute that the last one is."""


def _check_tables(program: Program, op: Op, where: str) -> None:
    for attr, (n_axes, columns) in _TABLES.items():
        if attr not in op.attrs:
            continue
        name, n = op.word(attr), op.integer(columns)
        table = program.constants.get(name)
        if table is None:
            raise ProgramError(f"{where}: constant {name} is not declared")
        fits = table.ndim == n_axes and table.shape[-1] == n
        wrong = "{}: {} {} is {}, expected {} columns"
        _need(fits, wrong, where, attr, name, table.shape, n)


def _check_ids(program: Program, op: Op, where: str) -> None:
    if "ids" not in op.attrs:
        return
    name = op.word("ids")
    ids = program.constants.get(name)
    if ids is None:
        raise ProgramError(f"{where}: constant {name} is not declared")
    n = width(program.values[op.ins[0]]) if op.kind == "place_logits" else ids.size
    wrong = "{}: ids {} are {}, expected [{}]"
    _need(ids.shape == (n,), wrong, where, name, ids.shape, n)
    least, most = (-1, op.integer("n_tokens")) if op.kind == "place_logits" else (0, 1 << 24)
    fits = n > 0 and ids.min() >= least and ids.max() < most
    _need(fits, "{}: ids {} beyond the {} tokens", where, name, most)


def _check_outputs(program: Program, defined: dict[str, Value]) -> None:
    for name in program.outputs:
        _need(name in defined, "{}: output {} is never made", program.name, name)
    read = {name for op in program.ops for name in op.ins} | set(program.outputs)
    for op in program.ops:
        if op.outs and read.isdisjoint(op.outs):
            raise ProgramError(f"{program.name}: {op.outs[0]} ({op.kind}) is made and never read")


def _check_weights(program: Program, stage: str) -> None:
    used, where = {name for op in program.ops for name in op.weights}, program.name
    for name, weight in program.weights.items():
        _need(name in used, "{}: weight {} is declared and never used", where, name)
        _need(weight.name == name, "{}: weight {} is listed as {}", where, weight.name, name)
        placed = stage != "lowered" or bool(weight.layout)
        _need(placed, "{}: weight {} has no layout", where, name)


def _check_kv(program: Program) -> None:
    specs = {spec.layer: spec for spec in program.kv}
    _need(len(specs) == len(program.kv), "{}: two KV specs for one layer", program.name)
    written: Counter[int] = Counter()
    for index, op in enumerate(program.ops):
        if op.kind not in (*KV_WRITERS, *KV_READERS, *STATE_OPS):
            continue
        layer, where = op.integer("layer"), f"{program.name}: op {index} ({op.kind})"
        spec = specs.get(layer)
        if spec is None:
            raise ProgramError(f"{where}: layer {layer} has no KV spec")
        same = (op.kind in STATE_OPS) == (spec.kind == "state") == (spec.state_size > 0)
        _need(same, "{}: layer {} keeps something else: {}", where, layer, spec)
        if op.kind in STATE_OPS:
            written[layer] += 1
            continue
        heads = (spec.n_kv_heads, spec.head_dim) == op.integers("n_kv_heads", "head_dim")
        _need(heads, "{}: heads differ from the KV spec of layer {}: {}", where, layer, spec)
        if op.kind in KV_WRITERS:
            written[layer] += 1
            continue
        early = "{}: reads the cache of layer {} before this step wrote it"
        _need(written[layer] > 0, early, where, layer)
        window = op.integer("window")
        # What tokens of an encoder see is computed with them: nothing leaves.
        is_kept = op.kind == "attention" and len(op.ins) > 1 and not spec.window
        kept = 0 if is_kept else window
        latent = op.integer("latent") if op.kind == "latent_attention" else 0
        _need(latent == spec.latent, "{}: latents differ from the KV spec: {}", where, spec)
        same = kept == spec.window and (spec.kind == "window") == (spec.window > 0)
        _need(same, "{}: window {} differs from the KV spec: {}", where, window, spec)
    for layer in specs:
        wrong = "{}: the cache of layer {} is written {} times, expected once"
        _need(written[layer] == 1, wrong, program.name, layer, written[layer])
