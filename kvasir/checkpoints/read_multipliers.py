"""Readers of factors within layers, which config.json names one by one and the converter to GGUF
multiplies into the matrices."""

from __future__ import annotations

from kvasir.checkpoints.fields import Fields
from kvasir.models.multiplier_spec import Multipliers


def read_multipliers(fields: Fields) -> Multipliers:
    """Those of a family that has any.

    One of the rows of attention counts in the scores, and here. One of the gate of an MLP is
    of all its rows, so that both matrices still read the same, and divides what it gives."""
    gate, x, b, c, step = _listed(fields, "scan_scales", 5)
    of_gate, down = _listed(fields, "mlp_scales", 2)
    rows = fields.number("scan_in_scale")
    return Multipliers(
        attention=fields.number("attention_in") * fields.number("attention_out"),
        scan=fields.number("scan_out_scale"),
        scan_gate=rows * gate,
        scan_step=rows * step,
        scan_columns=(rows * x, rows * b, rows * c),
        mlp_in=of_gate,
        mlp_out=down / of_gate,
    )


def score_multiplier(fields: Fields) -> float:
    """Of scores: queries and keys are made from the same rows."""
    return fields.number("key_scale") * fields.number("attention_in") ** 2


def _listed(fields: Fields, name: str, n: int) -> tuple[float, ...]:
    """Ones where the file lists none."""
    return fields.keys.numbers(fields.key(name), n) if fields.says(name) else (1.0,) * n
