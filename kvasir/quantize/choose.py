"""Which tensors of a model are quantized: matrices that rows of activations are multiplied by."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvasir.checkpoints.loaded import LoadedModel
from kvasir.checkpoints.tensors import build_program
from kvasir.core.errors import ConfigError, ModelError
from kvasir.formats.types import TensorInfo
from kvasir.ir.program import Program, Weight
from kvasir.weights.transforms import (
    DELTA_ROWS,
    GROUPED_QKV,
    HALVES_OF_HEADS,
    QKV,
    SCAN_ROWS,
)

PLAIN = ("F32", "F16", "BF16")
_ROW_STEPS = (
    *("permute_rope", "first_half", "second_half", "head_first", "head_last", *QKV[:3]),
    *(*SCAN_ROWS, *DELTA_ROWS, *HALVES_OF_HEADS, *GROUPED_QKV),
)
"""Steps that move whole rows, which rows of codes can, too."""
_KEPT = ("router", "shared_gate", "scan_step", "scan_share", "stream_router")
"""Weights that are a thousandth of a layer's, and decide where the others' rows go."""
_HEAD = "lm_head"


class Selection(msgspec.Struct, frozen=True):
    """Names of tensors."""

    quantized: tuple[str, ...]
    kept: tuple[str, ...]
    """Matrices that stay as they are."""
    narrow: tuple[str, ...]
    """Linears among them, whose rows are no multiple of what the method takes."""


def choose(model: LoadedModel, with_head: bool, multiple: int = 32) -> Selection:
    """In the order of the file; ``with_head``: also the language head; ``multiple``: of which rows
    have their elements. Raises ModelError where
    weights are quantized already, or none can be, and ConfigError for a head that is shared."""
    source = model.source
    infos = source.tensors.listing()
    coded = [x for x in infos if len(x.shape) > 1 and x.format not in PLAIN]
    if coded:
        raise ModelError(
            f"{source.path} is quantized already: {coded[0].name} is {coded[0].format}. Rounding "
            "what was rounded adds both errors: take the model's F32, F16 or BF16 weights",
            code="unsupported_format",
        )
    program = build_program(model.config)
    wanted = _wanted(program, with_head)
    heads = {x for kind, weight in _uses(program) if kind == _HEAD for x in weight.sources}
    if with_head and not heads & wanted:
        raise ConfigError(
            f"--lm-head: {source.name} has no head of its own to quantize, its embeddings are both"
        )
    matrices = [x for x in infos if len(x.shape) > 1]
    fitting = [x for x in matrices if x.name in wanted and _has_rows(x, source.kind)]
    narrow = {x.name for x in fitting if x.shape[-1] % multiple}
    quantized = tuple(x.name for x in fitting if x.name not in narrow)
    if not quantized:
        raise ModelError(
            f"{source.path}: none of {len(matrices)} matrices can be quantized: "
            f"{len(narrow)} have rows that are no multiple of {multiple}, the others are no "
            "linears of their own"
        )
    kept = tuple(x.name for x in matrices if x.name not in set(quantized))
    return Selection(quantized, kept, tuple(sorted(narrow)))


def linear_tensors(model: LoadedModel) -> tuple[str, ...]:
    """Matrices that a method could quantize, whatever they are stored as, in the order of the file;
    without the language head."""
    wanted, kind = _wanted(build_program(model.config), with_head=False), model.source.kind
    listed = model.source.tensors.listing()
    return tuple(x.name for x in listed if x.name in wanted and _has_rows(x, kind))


def _has_rows(info: TensorInfo, kind: str) -> bool:
    """Of outputs; of several matrices in one tensor only GGUF says that they are linears."""
    axes = (2, 3) if kind == "gguf" else (2,)
    return info.name.endswith(".weight") and len(info.shape) in axes


def _wanted(program: Program, with_head: bool) -> set[str]:
    """Tensors that linears read, and nothing else does."""
    kinds = ("linear", "experts", *((_HEAD,) if with_head else ()))
    wanted, others = set[str](), set[str]()
    for kind, weight in _uses(program):
        is_ours = kind in kinds and all(x.name in _ROW_STEPS for x in weight.transforms)
        (wanted if is_ours and len(weight.shape) > 1 else others).update(weight.sources)
    small = {x for _, w in _uses(program) if w.name.split(".")[-1] in _KEPT for x in w.sources}
    large = {x for _, w in _uses(program) if w.name.split(".")[-1] not in _KEPT for x in w.sources}
    return wanted - others - (small - large)


def _uses(program: Program) -> Iterator[tuple[str, Weight]]:
    for op in program.ops:
        for name in op.weights:
            yield op.kind, program.weights[name]
