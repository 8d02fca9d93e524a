"""Bundles of two tiny programs: a target and a draft that is as good as it is told to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace as with_fields

from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.passes import lower_passes
from kvasir.exec.reference import ReferenceExecutor, load_weights
from kvasir.ir.bundle import Bundle, bundle, verify_joined
from kvasir.ir.program import Op, Program, Value
from kvasir.ir.rewrite import with_ops
from kvasir.weights.bind import Binding
from tests import tiny
from tests.draft_pair import layer_of
from tests.loading import load
from tests.native import BEST

HIDDEN = "l2.x.mlp"
"""What the target's last layer makes."""
Joined = tuple[Program, Bundle, Binding]
"""The target alone and with its draft, raw, and the weights of both."""
WINDOW = 24
ENDS = ("embed", "final_norm", "lm_head")
"""Weights that a shallow draft has in common with the target."""


@dataclass(frozen=True, slots=True)
class Toy:
    name: str
    target: Program
    """Alone, lowered."""
    bundle: Bundle
    binding: Binding

    def native(self, sizes: EngineSizes, threads: int = 2) -> CpuExecutor:
        return CpuExecutor(
            self.bundle, self.binding, sizes, CpuSettings(threads, BEST, hashes=True)
        )

    def native_alone(self, sizes: EngineSizes) -> CpuExecutor:
        return CpuExecutor(self.target, self.binding, sizes, CpuSettings(1, BEST, hashes=True))

    def reference(self, sizes: EngineSizes) -> ReferenceExecutor:
        return ReferenceExecutor(self.bundle, load_weights(self.bundle, self.binding), sizes)


def equal(folder: Path) -> Joined:
    """The draft is the target, with entries of its own."""
    model = load(tiny.write_hf(tiny.llama(), folder))
    target = model.program
    return target, bundle(target, shared=target.weights, draft=target), model.binding


def windowed(folder: Path) -> Joined:
    """As ``equal``, with windows in some layers."""
    model = load(tiny.write_hf(tiny.gemma3(sliding_window=WINDOW), folder))
    target = model.program
    return target, bundle(target, shared=target.weights, draft=target), model.binding


def shallow(folder: Path) -> Joined:
    """The draft is the target without its last layer: embedding, last norm and head are shared."""
    target, draft, binding = _cut(folder, 2)
    return target, bundle(target, shared=ENDS, draft=draft), binding


def reading(folder: Path) -> Joined:
    """A draft of one layer that adds the target's last hidden states to its embeddings."""
    target, draft, binding = _cut(folder, 1)
    exporting = with_fields(target, outputs=(*target.outputs, HIDDEN))
    draft = _reading(draft, target.values[HIDDEN])
    return target, bundle(exporting, shared=ENDS, draft=draft), binding


TOYS: dict[str, Callable[[Path], Joined]] = {
    "equal": equal,
    "shallow": shallow,
    "reading": reading,
    "windowed": windowed,
}


def lower_bundle(raw: Bundle, *, dtype: str, formats: Mapping[str, str]) -> Bundle:
    """All passes of every program, and what they share verified."""
    lowered = raw.map(lambda program: lower_passes(program, dtype=dtype, formats=formats))
    verify_joined(lowered)
    return lowered


def make_toy(name: str, folder: Path, dtype: str = "float32") -> Toy:
    target, joined, binding = TOYS[name](folder)
    formats = binding.formats()
    alone = lower_passes(target, dtype=dtype, formats=formats)
    return Toy(name, alone, lower_bundle(joined, dtype=dtype, formats=formats), binding)


def _cut(folder: Path, n_layers: int) -> tuple[Program, Program, Binding]:
    """A target, and the program and weights of its first layers as a draft's."""
    whole = tiny.llama()
    cut = tiny.TinyModel(
        "tiny-draft", {**whole.config, "num_hidden_layers": n_layers}, whole.tensors
    )
    tensors = {x: t for x, t in whole.tensors.items() if layer_of(x) < n_layers}
    model = load(tiny.write_hf(whole, folder / "target"))
    draft = load(tiny.write_hf(replace(cut, tensors=tensors), folder / "draft"))
    own = {f"draft.{name}": bound for name, bound in draft.binding.weights.items()}
    return model.program, draft.program, Binding({**model.binding.weights, **own})


def _reading(program: Program, export: Value) -> Program:
    first, *rest = program.ops
    (x,) = first.outs
    values = MappingProxyType({**program.values, export.name: export})
    wider = with_fields(program, inputs=(*program.inputs, export.name), values=values)
    add = Op("add", (x, export.name), (f"{x}.read",))
    moved = [
        with_fields(op, ins=tuple(add.outs[0] if i == x else i for i in op.ins)) for op in rest
    ]
    return with_ops(wider, [first, add, *moved])
