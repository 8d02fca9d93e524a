"""How weights lie in memory: the table of packed layouts, whose bytes native/layouts.h has."""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """``bits`` of an element, scales and mins included; ``act``: rows that its linear reads."""

    bits: float
    act: str
    mins: bool = False
    row_bits: int = 0
    """What a row has beside its elements."""


LAYOUTS = {
    "f32": Layout(32, "f32"),
    "bf16": Layout(16, "bf16"),
    "f16": Layout(16, "f32"),
    "q8": Layout(8.5, "q8"),
    "q4z": Layout(4.5, "q8"),
    "q4m": Layout(5, "q8", True),
    "q4k": Layout(4.625, "q8", True),
    "q5k": Layout(5.625, "q8", True),
    "q6k": Layout(6.5625, "q8"),
    "q5z": Layout(5.5, "q8"),
    "q5m": Layout(6, "q8", True),
    "iq4": Layout(4.5, "q8"),
    "q8s": Layout(10, "q8"),
    "q8m": Layout(12, "q8", True),
    "q2k": Layout(2.625, "q8", True),
    "q3k": Layout(3.5625, "q8"),
    "iq4xs": Layout(4.3125, "q8"),
    "mxfp4": Layout(4.25, "q8"),
    "iq2xxs": Layout(2.1875, "q8"),
    "iq2xs": Layout(2.4375, "q8"),
    "iq2s": Layout(2.5625, "q8"),
    "iq3xxs": Layout(3.1875, "q8"),
    "iq3s": Layout(3.4375, "q8"),
    "iq1s": Layout(1.5625, "q8"),
    "iq1m": Layout(1.8125, "q8"),
    "tq1": Layout(1.6875, "q8"),
    "tq2": Layout(2.0625, "q8"),
    **{
        f"qg{n}_{group}": Layout(n + 24 / group, "q8")
        for n in (2, 3, 4, 8)
        for group in (32, 64, 128)
    },
    "q4c": Layout(4, "q8", row_bits=40),
    "q8c": Layout(8, "q8", row_bits=32),
    "nvfp4": Layout(4.5, "q8", row_bits=32),
    "nvfp4d": Layout(4.5, "q8", row_bits=32),
    "f8c": Layout(8, "bf16", row_bits=32),
    "f8_32": Layout(9, "bf16"),
    "f8_128": Layout(8.25, "bf16"),
    "nf4": Layout(4.5, "bf16"),
    "fp4": Layout(4.5, "bf16"),
}
