"""Says where packed weights differ from how the file keeps them, and what that costs."""

from __future__ import annotations

from collections import defaultdict

from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.formats.types import FORMATS
from kvasir.ir.program import Program
from kvasir.weights.bind import Binding

_MEANS = {
    "f32": "f32",
    "bf16": "bf16, rounded",
    "q8s": "8-bit integers with f32 scales, nothing lost",
    "q8m": "8-bit integers with f32 scales and minimums, nothing lost",
}
_ROWS = {"q8": "int8, a scale per block", "bf16": "bf16", "f32": "f32"}


def placement(program: Program, binding: Binding) -> str:
    """One line: how a quantized checkpoint keeps its weights and what activations are made to;
    formats that got another layout than their own, with sizes in MB."""
    moved: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, weight in program.weights.items():
        format_name = binding[name].format
        if len(weight.shape) > 1 and LAYOUT_OF_FORMAT[format_name] != weight.layout:
            moved[format_name, weight.layout].append(name)
    lines = [_line(program, binding, *key, names) for key, names in moved.items()]
    text = "; ".join(lines) or "every matrix in the layout of its format"
    said = binding.source.quantization if binding.source else ""
    return f"{said} (activations: {_activations(program, binding)}): {text}" if said else text


def _activations(program: Program, binding: Binding) -> str:
    """What meets the quantized weights, whatever the checkpoint says."""
    modules = [x for x in program.weights.values() if binding[x.name].tensors[0].module]
    acts = sorted({LAYOUTS[weight.layout].act for weight in modules if weight.layout})
    rows = " and ".join(_ROWS[act] for act in acts) or "as with unquantized weights"
    return f"{rows}; those of the checkpoint give way"


def _line(program: Program, binding: Binding, form: str, layout: str, names: list[str]) -> str:
    weights = [program.weights[name] for name in names]
    elements = sum(weight.n_elements for weight in weights)
    stored = elements / FORMATS[form].block * FORMATS[form].block_bytes
    modules = {id(x): x for name in names for x in binding[name].tensors if x.module}
    if modules:
        stored = sum(tensor.n_bytes for tensor in modules.values())
    packed = sum(weight.n_bytes for weight in weights)
    meaning = _MEANS.get(layout, f"{LAYOUTS[layout].bits:g} bits")
    count = "1 matrix" if len(names) == 1 else f"{len(names)} matrices"
    return f"{form} -> {meaning}: {count}, {stored / 1e6:.1f} -> {packed / 1e6:.1f} MB"
