"""A model that drafts for another."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from kvasir.checkpoints.loaded import LoadedModel
from kvasir.checkpoints.tensors import build_program, ignorable
from kvasir.checkpoints.tower import read_tower, seeing_family
from kvasir.core.errors import ModelError, printable
from kvasir.ir.program import Program
from kvasir.ir.vocabulary import in_target_ids
from kvasir.models.spec import ModelConfig
from kvasir.weights.bind import Binding, bind
from kvasir.weights.input_order import with_input_order


def as_draft(model: LoadedModel) -> LoadedModel:
    """Of one that sees images what reads and writes tokens. Raises ModelError for one that writes
    none."""
    if not model.config.writes:
        path = printable(str(model.source.path))
        raise ModelError(f"draft model {path} gives no tokens: take one with a language model head")
    return replace(model, config=_blind(model.config), tower=None)


def build_draft(model: LoadedModel, max_positions: int) -> tuple[Program, Binding]:
    """The raw program, in the words of its target, and its weights."""
    raw = build_program(model.config, max_positions=max_positions)
    may_skip, is_of_tower = ignorable(model.config), _of_tower(model)
    binding = bind(raw, model.source, lambda tensor: may_skip(tensor) or is_of_tower(tensor))
    raw, binding = with_input_order(raw, binding)
    return raw if model.ids is None else in_target_ids(raw, model.ids), binding


def _blind(config: ModelConfig) -> ModelConfig:
    """Of text alone: a token sees those before it, and stands at one place on all axes of M-RoPE,
    which is rope by its index."""
    ropes = {name: replace(rope, axes=None) for name, rope in config.ropes.items()}
    return replace(config, sees=False, block=replace(config.block, spans=False), ropes=ropes)


def _of_tower(model: LoadedModel) -> Callable[[str], bool]:
    """Whether a tensor of the files is of the tower, which a draft model does without."""
    if seeing_family(model.source) is None:
        return lambda tensor: False
    return read_tower(model.source, model.config.hidden_size).has
