"""What is known of a model's vectors before any is computed."""

from __future__ import annotations

import msgspec


class VectorFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    size: int = 0
    """Numbers of a vector; 0 where nothing is known."""
    trained: str = ""
    """The pooling that the model was trained with, as its file says; empty when it says nothing."""
    is_matryoshka: bool = False
    """Vectors may be cut (Kusupati et al. 2022) ..."""
    dimensions: tuple[int, ...] = ()
    """... to these lengths, or to any where none are named."""
    labels: tuple[str, ...] = ()
    """Of its head for them, if it has one."""
    both_ways: bool = False
    """The first token sees all others, so that its state says something of the text."""
    writes: bool = True
    """False for a model that gives vectors and labels alone."""
    n_dense: int = 0
    """Layers that a pooled vector goes through before it is told (``text.heads``)."""
    label_pooling: str = "last"
    """Of what its head for labels reads."""
    n_types: int = 0
    """Kinds of tokens: with two, those of a second text are of the second."""

    prompts: tuple[tuple[str, str], ...] = ()
    """What the model was trained to read before a text, by names such as "query"."""
    default_prompt: str = ""
    """The name of the one that stands before a text of which nothing is said."""


NO_VECTORS = VectorFacts()
