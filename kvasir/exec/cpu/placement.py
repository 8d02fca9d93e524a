"""Says where packed weights differ from how the file keeps them, and what that costs."""

from __future__ import annotations

from collections import defaultdict

from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT
from kvasir.formats.types import FORMATS
from kvasir.ir.cost import weight_bytes
from kvasir.ir.layouts import LAYOUTS
from kvasir.ir.program import Program
from kvasir.weights.bind import Binding

_MEANS = {
    "f32": "f32",
    "bf16": "bf16, rounded",
    "q8s": "8-bit integers with f32 scales, nothing lost",
    "q8m": "8-bit integers with f32 scales and minimums, nothing lost",
}


def placement(program: Program, binding: Binding) -> str:
    """One line: formats that got another layout than their own, with sizes in MB."""
    moved: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, weight in program.weights.items():
        format_name = binding[name].format
        if len(weight.shape) > 1 and LAYOUT_OF_FORMAT[format_name] != weight.layout:
            moved[format_name, weight.layout].append(name)
    if not moved:
        return "every matrix in the layout of its format"
    return "; ".join(_line(program, names, form, layout) for (form, layout), names in moved.items())


def _line(program: Program, names: list[str], form: str, layout: str) -> str:
    weights = [program.weights[name] for name in names]
    elements = sum(weight.n_elements for weight in weights)
    stored = elements / FORMATS[form].block * FORMATS[form].block_bytes
    packed = sum(weight_bytes(weight) for weight in weights)
    meaning = _MEANS.get(layout, f"{LAYOUTS[layout].bits:g} bits")
    count = "1 matrix" if len(names) == 1 else f"{len(names)} matrices"
    return f"{form} -> {meaning}: {count}, {stored / 1e6:.1f} -> {packed / 1e6:.1f} MB"
