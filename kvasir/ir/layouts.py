"""How weights lie in memory: the table of packed layouts (native/kernels.h has their bytes)."""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """``bits`` of an element, scales and mins included; ``act``: rows that its linear reads."""

    code: int
    bits: float
    act: str
    mins: bool = False


LAYOUTS = {
    "f32": Layout(0, 32, "f32"),
    "bf16": Layout(1, 16, "bf16"),
    "q8": Layout(2, 8.5, "q8"),
    "q4z": Layout(3, 4.5, "q8"),
    "q4m": Layout(4, 5, "q8", True),
    "q4k": Layout(5, 4.625, "q8", True),
    "q5k": Layout(6, 5.625, "q8", True),
    "q6k": Layout(7, 6.5625, "q8"),
    "q5z": Layout(8, 5.5, "q8"),
    "q5m": Layout(9, 6, "q8", True),
    "iq4": Layout(10, 4.5, "q8"),
    "q8s": Layout(11, 10, "q8"),
    "q8m": Layout(12, 12, "q8", True),
    "q2k": Layout(13, 2.625, "q8", True),
    "q3k": Layout(14, 3.5625, "q8"),
    "iq4xs": Layout(15, 4.3125, "q8"),
    "mxfp4": Layout(16, 4.25, "q8"),
    "iq2xxs": Layout(17, 2.1875, "q8"),
    "iq2xs": Layout(18, 2.4375, "q8"),
    "iq2s": Layout(19, 2.5625, "q8"),
    "iq3xxs": Layout(20, 3.1875, "q8"),
    "iq3s": Layout(21, 3.4375, "q8"),
    "iq1s": Layout(22, 1.5625, "q8"),
    "iq1m": Layout(23, 1.8125, "q8"),
    "tq1": Layout(24, 1.6875, "q8"),
    "tq2": Layout(25, 2.0625, "q8"),
}
