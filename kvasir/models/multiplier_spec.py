"""Factors that some models have within their layers."""

from __future__ import annotations

import msgspec


class Multipliers(msgspec.Struct, frozen=True):
    """Factors within all layers, beside those of attention scores; 1 changes nothing."""

    attention: float = 1.0
    """Of what attention gives."""
    scan: float = 1.0
    """Of what a scan gives."""
    scan_gate: float = 1.0
    """Of the rows that its gate is made from."""
    scan_step: float = 1.0
    """Of its steps."""
    scan_columns: tuple[float, ...] = (1.0, 1.0, 1.0)
    """Of the three parts of what its convolution reads."""
    mlp_in: float = 1.0
    """Of the rows that an MLP reads."""
    mlp_out: float = 1.0
    """Of what it gives."""
