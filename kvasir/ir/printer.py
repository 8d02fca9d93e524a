"""The stable text form of a program, for people and for the golden test of a family."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from kvasir.ir.program import Attr, FloatArray, KVSpec, Op, Program, Value, Weight


def render(program: Program) -> str:
    """One line for each input, KV layer, constant, weight and op, in program order."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    yield f"program {program.name}"
    yield "inputs " + ", ".join(_typed(program.values[name]) for name in program.inputs)
    yield from (_kv(spec) for spec in program.kv)
    yield from (_constant(name, array) for name, array in program.constants.items())
    yield from (_weight(weight) for weight in program.weights.values())
    yield from (_op(program, op) for op in program.ops)
    yield "outputs " + ", ".join(program.outputs)


def _typed(value: Value) -> str:
    block = f"/{value.block}" if value.block else ""
    return f"{value.name}: {value.dtype}{block}[{', '.join(str(dim) for dim in value.shape)}]"


def _kv(spec: KVSpec) -> str:
    if spec.state_size:
        return f"kv {spec.layer}: state of {spec.state_size}, {spec.dtype}"
    kind = f"window {spec.window}" if spec.window else spec.kind
    heads = f"{spec.n_kv_heads} heads of {spec.head_dim}"
    heads += f" with latents of {spec.latent}" if spec.latent else ""
    return f"kv {spec.layer}: {kind}, {heads}, {spec.dtype}"


def _constant(name: str, array: FloatArray) -> str:
    """The checksum is of rounded values: sines may differ in the last bit between machines."""
    rounded = (array * 4096).round().astype("<i4")
    return f"constant {name}: f32{list(array.shape)} ~{zlib.crc32(rounded.tobytes()):08x}"


def _weight(weight: Weight) -> str:
    layout = f" {weight.layout}" if weight.layout else ""
    steps = [f" | {step.name}({', '.join(map(str, step.args))})" for step in weight.transforms]
    found = _sources(weight.sources) + "".join(steps)
    return f"weight {weight.name}:{layout} {list(weight.shape)} <- {found}"


def _sources(names: tuple[str, ...]) -> str:
    if len(names) > 1:
        return f"{names[0]} ... {names[-1]} ({len(names)})"
    return names[0] if names else "nothing"


def _op(program: Program, op: Op) -> str:
    outs = ", ".join(_typed(program.values[name]) for name in op.outs)
    weights = f" [{', '.join(op.weights)}]" if op.weights else ""
    attrs = ", ".join(f"{name}={_attr(value)}" for name, value in op.attrs.items())
    shown = f" {{{attrs}}}" if attrs else ""
    return f"{outs or '()'} = {op.kind}({', '.join(op.ins)}){weights}{shown}"


def _attr(value: Attr) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.9g}" if isinstance(value, float) else str(value)
