"""Medusa's heads from the folders that their authors, or vLLM, publish."""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import count
from pathlib import Path

import msgspec

from kvasir.checkpoints.loaded import LoadedModel, weight_dtype
from kvasir.config.resolved import ModelFacts
from kvasir.core.errors import ModelError, printable
from kvasir.formats.mapped import TensorFile
from kvasir.formats.safetensors import open_safetensors
from kvasir.ir.program import Program, Weight
from kvasir.models.medusa import MedusaHeads, record_medusa
from kvasir.weights.bind import Binding, bind
from kvasir.weights.source import ModelSource, open_model

METHOD = "medusa"
_FILE = "medusa_lm_head.safetensors"


class MedusaNames(msgspec.Struct, frozen=True):
    """Of the tensors of head {i} and its layer {j}."""

    linear: str
    logits: str
    """{n}: the layers of a head."""


_LAYOUTS = (
    MedusaNames("{i}.{j}.linear", "{i}.{n}"),
    MedusaNames("blocks.{i}.layers.{j}", "lm_heads.{i}"),
)
"""As the authors publish them, and as vLLM has them."""


class LoadedMedusa(MedusaHeads, frozen=True, kw_only=True):
    source: ModelSource
    names: MedusaNames

    def weight(self, head: int, name: str, shape: tuple[int, ...]) -> Weight:
        matrix = name.removesuffix(".bias")
        end = "weight" if matrix == name else "bias"
        if matrix == "lm_head":
            tensor = self.names.logits.format(i=head, n=self.n_layers)
        else:
            tensor = self.names.linear.format(i=head, j=matrix.removeprefix("layers."))
        return Weight(name, shape, (f"{tensor}.{end}",))


def load_medusa(path: str, target: LoadedModel) -> LoadedMedusa:
    """Raises ModelError, with tensors and sizes, on what is no such folder."""
    source = _open(path)
    table = source.tensors
    for names in _LAYOUTS:
        n_layers = _count(table, names.linear, lambda n: {"i": 0, "j": n})
        n_heads = _count(table, names.linear, lambda n: {"i": n, "j": 0})
        if n_heads:
            return LoadedMedusa(target.config, n_heads, n_layers, source=source, names=names)
    raise ModelError(
        f"{source.path}: no tensor 0.0.linear.weight or blocks.0.layers.0.weight, which Medusa's "
        "heads have"
    )


def medusa_facts(heads: LoadedMedusa, target: LoadedModel) -> ModelFacts:
    """What planning needs to know of them."""
    tensors = [heads.source.tensors[name] for name in heads.source.tensors]
    return ModelFacts(
        name=f"{printable(heads.source.name)} ({METHOD})",
        vocab_size=target.config.vocab_size,
        context_length=target.config.max_positions,
        kv_values_per_token=0,
        weight_bytes=sum(info.data.nbytes for info in tensors),
        weight_dtype=weight_dtype({info.format for info in tensors if len(info.shape) > 1}),
        kv_vectors_per_token=0,
        is_head=True,
        most_drafts=heads.n_heads,
    )


def medusa_program(heads: LoadedMedusa, i: int) -> tuple[Program, Binding]:
    """The raw program of one head, and its weights. Raises ModelError."""
    program = record_medusa(heads, i)
    return program, bind(program, heads.source, lambda tensor: True)


def _open(path: str) -> ModelSource:
    """A folder with a file of the authors' name, or one as all others."""
    source_file = _own_file(path)
    if source_file is None:
        return open_model(path)
    return ModelSource(
        path=source_file.path.parent,
        kind="hf",
        name=printable(source_file.path.parent.resolve().name),
        config={},
        tensors=source_file.tensors,
        files=(source_file,),
    )


def _own_file(path: str) -> TensorFile | None:
    file = Path(path).expanduser() / _FILE
    return open_safetensors(file) if file.is_file() else None


def _count(table: Container[str], name: str, of: Callable[[int], dict[str, int]]) -> int:
    """Tensors that there are one after the other."""
    return next(n for n in count() if f"{name.format(**of(n))}.weight" not in table)
