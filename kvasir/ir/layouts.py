"""How weights lie in memory: the table of packed layouts, whose bytes native/kernels.h has."""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """``bits`` of an element, scales and mins included; ``act``: rows that its linear reads."""

    bits: float
    act: str
    mins: bool = False


LAYOUTS = {
    "f32": Layout(32, "f32"),
    "bf16": Layout(16, "bf16"),
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
}
