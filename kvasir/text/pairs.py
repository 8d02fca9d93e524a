"""Which texts are compared with which."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvasir.core.errors import RequestError

METHODS = ("auto", "classifier", "logits", "cosine")
Pair = tuple[int, int]


def pairs_of(n_queries: int, n_documents: int) -> tuple[Pair, ...]:
    """Indices of a query and of a document: one with each of the others, or each with its own.
    Raises RequestError (400)."""
    if n_queries == 1:
        return tuple((0, i) for i in range(n_documents))
    if n_documents == 1:
        return tuple((i, 0) for i in range(n_queries))
    if n_queries != n_documents:
        raise RequestError(
            f"{n_queries} texts on one side and {n_documents} on the other: send one on a side, "
            "or as many on both",
            param="text_2",
        )
    return tuple((i, i) for i in range(n_queries))


def method_of(
    method: str, problem: str | None, *, wants_vectors: bool, labels: Sequence[str] = ()
) -> str:
    """How texts are compared. ``problem``: why the model cannot judge; ``wants_vectors``: it was
    trained for them, or something was asked that has a meaning for them alone; ``labels``: of its
    classifier. Raises RequestError (400)."""
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise RequestError(f"method {method[:32]!r}: use one of {known}", param="method")
    if method == "auto":
        can_judge = not wants_vectors and problem is None
        return "classifier" if can_rank(labels) else "logits" if can_judge else "cosine"
    if method == "classifier" and not can_rank(labels):
        has = f"a classifier of {', '.join(labels)[:64]}" if labels else "no classifier head"
        why = f"this model has {has}, which ranks nothing: use another method"
        raise RequestError(why, param="method")
    if method == "logits" and problem is not None:
        raise RequestError(f"{problem}: use method cosine", param="method")
    return method


def can_rank(labels: Sequence[str]) -> bool:
    """Whether a classifier says how well a pair fits: by one number, or by a yes."""
    return len(labels) == 1 or "yes" in labels


def fit_of(logits: Sequence[float], labels: Sequence[str]) -> float:
    """Of a pair: the probability of yes, or of the only label."""
    chances = probabilities(logits)
    return chances[labels.index("yes")] if "yes" in labels else chances[0]


def probabilities(logits: Sequence[float]) -> list[float]:
    """Of labels that exclude each other; of one alone that it holds."""
    if len(logits) == 1:
        return [1.0 / (1.0 + math.exp(min(-logits[0], 700.0)))]
    highest = max(logits)
    weights = [math.exp(x - highest) for x in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
