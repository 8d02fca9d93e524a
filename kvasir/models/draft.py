"""A model that drafts for another."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.core.errors import ModelError, printable
from kvasir.ir.program import Program
from kvasir.models.decoder import build_program
from kvasir.models.loaded import LoadedModel
from kvasir.models.tensors import ignorable
from kvasir.models.tower import is_of_tower
from kvasir.weights.bind import Binding, bind


def as_draft(model: LoadedModel) -> LoadedModel:
    """Of one that sees images what reads and writes tokens. Raises ModelError for one that writes
    none."""
    if not model.config.writes:
        path = printable(str(model.source.path))
        raise ModelError(f"draft model {path} gives no tokens: take one with a language model head")
    return replace(model, config=replace(model.config, sees=False), tower=None)


def build_draft(model: LoadedModel, max_positions: int) -> tuple[Program, Binding]:
    """The raw program, and its weights."""
    raw = build_program(model.config, max_positions=max_positions)
    may_skip = ignorable(model.config)
    binding = bind(raw, model.source, lambda tensor: may_skip(tensor) or is_of_tower(tensor))
    return raw, binding
