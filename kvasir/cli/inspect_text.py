"""The texts of ``kvasir inspect``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from kvasir import _native
from kvasir.bench.fingerprint import fingerprint
from kvasir.checkpoints import build_program
from kvasir.checkpoints.loaded import LoadedModel, load_model, model_facts
from kvasir.cli.features import CHECKS, checks, features
from kvasir.config.env import read_env
from kvasir.config.options import EngineOptions
from kvasir.config.sizes import format_size
from kvasir.engine.build import resolve_options
from kvasir.exec.cpu.backend import CPU
from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.formats.types import FORMATS
from kvasir.ir.fuse import fuse
from kvasir.ir.phases import phases
from kvasir.ir.pool import with_pool
from kvasir.ir.printer import render
from kvasir.models.families import FAMILIES


def model_text(path: str | None, with_tensors: bool) -> str:
    """Family, sizes and formats; with ``with_tensors`` a line per tensor."""
    loaded = load_model(path)
    tensors = list(loaded.source.tensors.values())
    n_weights = sum(_n_elements(info.shape) for info in tensors)
    lines = [
        f"{loaded.source.name}  ({loaded.source.kind}, {loaded.source.path})",
        f"{n_weights / 1e6:.1f} M parameters, "
        f"{format_size(sum(info.n_bytes for info in tensors))} of weights",
        *([f"  weights: {loaded.source.quantization}"] if loaded.source.quantization else []),
        *_fields(asdict(loaded.config)),
        *_format_lines(loaded),
    ]
    if with_tensors:
        rows = [(info.name, info.format, str(list(info.shape))) for info in tensors]
        lines += ["", *_table(rows)]
    return "\n".join(lines) + "\n"


def program_text(path: str | None, stage: str, dtype: str) -> str:
    """The program of a model at a stage: "raw", "fused" or "lowered", which is the one that an
    engine runs with ``dtype`` and the other options as they are by default.

    Raises ModelError, and ConfigError when this machine cannot run the model.
    """
    loaded = load_model(path)
    if stage == "lowered":
        return _lowered_text(loaded, dtype)
    raw = build_program(loaded.config)
    return render(raw if stage == "raw" else fuse(raw))


def _lowered_text(loaded: LoadedModel, dtype: str) -> str:
    config = resolve_options(EngineOptions(dtype=dtype), model_facts(loaded))
    program = with_pool(CPU.program(loaded, config)[0]).target
    n_phases = len(set(phases(program)))
    layers = len(program.kv)
    return f"{render(program)}phases {n_phases}, {n_phases / max(1, layers):.1f} a layer\n"


def formats_text() -> str:
    """A row per format that files may hold: what each executor and ISA level makes of it.

    Every level has a kernel for every layout, its own or that of a level below, so their columns
    differ only where one lacks one.
    """
    levels = [name if proven else f"{name}*" for name, _, proven in _native.all_levels()]
    head = ("format", "block", "bytes", "bits", "layout", "packed bits", "reference", *levels)
    rows = [
        (*_stored(name), *_packed(name), "decoded", *(_how(name),) * len(levels))
        for name in FORMATS
    ]
    notes = [
        "native: in a layout of its own, every value as stored (levels of NF4, FP4: to bf16)",
        "QG2_32 to FP4: what modules of quantized checkpoints become (docs/weight-formats.md)",
        "decoded: as f32; --dtype float32 does it to every format",
        "*: untested on hardware: its instructions have only run in emulation",
        f"levels of this CPU: {', '.join(_native.levels())}",
    ]
    return "\n".join([*_table([head, *rows]), *notes]) + "\n"


def families_text() -> str:
    """A row per family: its GGUF architecture, what tests compare, and what it has."""
    head = ("family", "GGUF", *CHECKS, "has")
    rows = [
        (
            family.name,
            family.gguf or "-",
            *("yes" if word in checks(family) else "-" for word in CHECKS),
            ", ".join(features(family)),
        )
        for family in sorted(FAMILIES, key=lambda family: family.name)
    ]
    notes = [
        "logits: within 1e-4 of transformers', from tiny random models",
        "file: the same from a GGUF file as llama.cpp's converter writes it",
        "exact: one answer from every way to compute it, in the exactness harness",
        "real: greedy tokens, or vectors, of real weights are transformers'",
    ]
    return "\n".join([*_table([head, *rows]), *notes]) + "\n"


def _stored(name: str) -> tuple[str, ...]:
    form = FORMATS[name]
    bits = form.block_bytes * 8 / form.block
    return name, str(form.block), str(form.block_bytes), f"{bits:g}"


def _packed(name: str) -> tuple[str, str]:
    layout = LAYOUT_OF_FORMAT[name]
    return layout, f"{LAYOUTS[layout].bits:g}"


def _how(name: str) -> str:
    is_packed = FORMATS[name].is_quantized or name == LAYOUT_OF_FORMAT[name].upper()
    return "native" if is_packed else "decoded"


def environment() -> dict[str, Any]:
    """JSON-ready."""
    variables = asdict(read_env())
    return {
        **fingerprint(),
        "variables": {name: _plain(value) for name, value in variables.items()},
    }


def _plain(value: object) -> str | None:
    return None if value is None else str(value)


def _n_elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _fields(values: dict[str, Any], indent: str = "  ") -> list[str]:
    lines = []
    for name, value in values.items():
        inner = asdict(value) if isinstance(value, msgspec.Struct) else value
        if isinstance(inner, dict):
            lines += [f"{indent}{name}", *_fields(inner, indent + "  ")]
        elif value not in (None, ()):
            lines.append(f"{indent}{name:<24}{value}")
    return lines


def _format_lines(loaded: LoadedModel) -> list[str]:
    tensors = loaded.source.tensors.values()
    counts = Counter(info.format for info in tensors)
    sizes = {name: sum(i.n_bytes for i in tensors if i.format == name) for name in counts}
    return [
        f"  {name}: {count} tensors, {format_size(sizes[name])}"
        for name, count in counts.most_common()
    ]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
