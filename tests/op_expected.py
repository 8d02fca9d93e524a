"""What some ops give, a number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvasir.ir.program import FloatArray


def angles_of(
    table: FloatArray, at: FloatArray, sections: Sequence[int], woven: bool
) -> FloatArray:
    """Woven pairs as the released code slices them."""
    (time, height, width), n = sections, sum(sections)
    axes = [0] * time + [1] * height + [2] * width
    if woven:
        axes = [0] * n
        axes[1 : 3 * height : 3] = [1] * height
        axes[2 : 3 * width : 3] = [2] * width
    columns = [(half + i, axis) for half in (0, n) for i, axis in enumerate(axes)]
    return np.array([[table[row[axis], i] for i, axis in columns] for row in at.astype(int)])


def activation(x: float, kind: str) -> float:
    if kind == "silu":
        return x / (1 + math.exp(-x))
    if kind == "gelu":
        return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
    if kind == "relu2":
        return x * x if x > 0 else 0.0
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def act_all(x: FloatArray, kind: str) -> FloatArray:
    return np.array([activation(float(v), kind) for v in x.reshape(-1)]).reshape(x.shape)


def logits_at(x: FloatArray, ids: Sequence[int], n: int) -> FloatArray:
    """Column i at ids[i], where that is not negative, of ``n``."""
    out = np.full((len(x), n), -np.inf)
    for own, at in enumerate(ids):
        if at >= 0:
            out[:, at] = x[:, own]
    return out


def given_rows(x: FloatArray, given: FloatArray, kept: int) -> FloatArray:
    """Of five rows the second and the last are given; ``kept``: times ``x`` in these."""
    both = enumerate((0, 1, 0, 0, 1))
    return np.array([kept * x[t] + given[t] if i else x[t] for t, i in both])


def mixed(joined: FloatArray, shares: FloatArray) -> FloatArray:
    """Three streams of nine columns."""
    x = np.split(joined, 3, axis=1)
    return np.hstack(
        [x[i] + sum(shares[:, 3 * i + j, None] * x[j] for j in range(3)) for i in range(3)]
    )


def corrected(joined: FloatArray, made: FloatArray, shares: FloatArray) -> FloatArray:
    x = np.split(joined, 3, axis=1)
    return np.hstack([x[i] + (1 + shares[:, i, None]) * (made - x[1]) for i in range(3)])


def matched(x: FloatArray, like: FloatArray, least: float) -> FloatArray:
    def size(row: FloatArray, least: float) -> float:
        return math.sqrt(max(float((row**2).sum()) / len(row), least))

    return np.array(
        [own / size(own, least) * size(other, 0.0) for own, other in zip(x, like, strict=True)]
    )


def sparse(gate: FloatArray, up: FloatArray, act: str) -> FloatArray:
    """Above 0.4 deviations."""
    mean = gate.sum(axis=1, keepdims=True) / gate.shape[1]
    cut = mean + 0.4 * np.sqrt(((gate - mean) ** 2).sum(axis=1, keepdims=True) / gate.shape[1])
    above = np.where(gate > cut, gate - cut, 0.0)
    assert 0 < (above > 0).mean() < 0.6
    return act_all(above, act) * up


def gathered(x: FloatArray, ids: FloatArray, places: FloatArray) -> FloatArray:
    """Pair rows: of each token with the columns of each of its experts."""
    experts = [(t, int(expert)) for t, chosen in enumerate(ids) for expert in chosen]
    return np.array([[x[t, int(i)] for i in places[expert]] for t, expert in experts])
