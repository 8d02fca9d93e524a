"""From what the engine gives for a prompt to the vector that a client gets."""

from __future__ import annotations

import math
import operator
from array import array
from typing import TypeAlias, get_args

from kvasir.core.errors import RequestError
from kvasir.core.request import PoolKind
from kvasir.core.vectors import VectorFacts

Floats: TypeAlias = "array[float]"
"""f32, as the machine has them: little-endian, as the engine says them."""
POOL_KINDS: tuple[PoolKind, ...] = get_args(PoolKind)


def pooling_of(asked: str | None, facts: VectorFacts) -> PoolKind:
    """What was asked for, else what the model was trained with, else "last". Raises RequestError
    (400)."""
    word = asked or facts.trained or "last"
    found = next((kind for kind in POOL_KINDS if kind == word), None)
    if found is None:
        whose = "" if asked else "the model was trained with "
        raise RequestError(
            f"{whose}pooling {word[:32]!r} is not one of {', '.join(POOL_KINDS)}"
            + ("" if asked else ": ask for one of them"),
            param="pooling",
        )
    return found


def prompt_of(name: str | None, facts: VectorFacts) -> str:
    """What stands before a text: what is asked for by its name, else what the model's file says.
    Raises RequestError (400)."""
    prompts = dict(facts.prompts)
    if name is not None and name not in prompts:
        known = ", ".join(prompts) or "none"
        raise RequestError(
            f"the model has no prompt {name[:32]!r}; it has {known}", param="prompt_name"
        )
    return prompts.get(facts.default_prompt if name is None else name, "")


def ids_with_prompt() -> RequestError:
    """Of ids, before which no text can stand."""
    return RequestError("prompt_name stands before texts: send no ids", param="prompt_name")


def note_of(kind: PoolKind, facts: VectorFacts) -> tuple[str, ...]:
    """What a client must know of the vectors of a causal model."""
    if kind != "cls" or facts.both_ways:
        return ()
    return ("pooling cls: the first token of this model sees no other, use mean or last",)


def check_dimensions(dimensions: int | None, facts: VectorFacts) -> None:
    """Refuses lengths to which the model was not trained to have its vectors cut."""
    if dimensions is None or dimensions == facts.size:
        return
    known = facts.dimensions or range(1, facts.size)
    if facts.is_matryoshka and dimensions in known:
        return
    lengths = [*facts.dimensions[:32], facts.size] if facts.is_matryoshka else [facts.size]
    raise RequestError(
        f"dimensions {dimensions}: the vectors of this model have {facts.size} numbers"
        + (
            f" and may be cut to {', '.join(map(str, lengths[:-1])) or 'any number below'}"
            if facts.is_matryoshka
            else " and it was not trained to have them cut: leave dimensions out"
        ),
        param="dimensions",
    )


def finished(vector: bytes, dimensions: int | None = None, *, normalize: bool) -> Floats:
    """f32 [dimensions], of f32 [size] as bytes: cut, then divided by its length."""
    values = array("f", vector)[:dimensions]
    length = math.sqrt(_dot(values, values)) if normalize else 0.0
    return array("f", [x / length for x in values]) if length else values


def cosine(a: bytes, b: bytes) -> float:
    """Of f32 vectors as bytes; 0 beside one that is zero."""
    x, y = array("f", a), array("f", b)
    lengths = math.sqrt(_dot(x, x)) * math.sqrt(_dot(y, y))
    return _dot(x, y) / lengths if lengths else 0.0


def _dot(x: Floats, y: Floats) -> float:
    """Exactly rounded: products of f32 are exact in f64, and no order of adding matters."""
    return math.fsum(map(operator.mul, x, y))
