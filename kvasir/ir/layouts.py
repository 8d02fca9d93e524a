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
}

OWN_LAYOUT = {
    "Q4_0": "q4z",
    "Q4_1": "q4m",
    "Q5_0": "q5z",
    "Q5_1": "q5m",
    "Q8_0": "q8",
    "Q4_K": "q4k",
    "Q5_K": "q5k",
    "Q6_K": "q6k",
    "IQ4_NL": "iq4",
    "BF16": "bf16",
    "F16": "f32",  # bf16 would drop three bits
    "F32": "f32",
}
"""Formats with a layout made for them."""

WIDENED = dict.fromkeys(
    ("Q3_K", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M",
     "TQ1_0", "TQ2_0", "MXFP4"),
    "q8s",
) | {"Q2_K": "q8m"}  # fmt: skip
"""Formats kept as 8-bit integers with f32 scales: every value as it was, more memory."""

LAYOUT_OF_FORMAT = OWN_LAYOUT | WIDENED


def common_layout(layouts: set[str]) -> str:
    """A layout that holds the values of all: 8-bit integers where all are integers, else f32."""
    if len(layouts) == 1:
        return min(layouts)
    if any(LAYOUTS[name].act != "q8" for name in layouts):
        return "f32"
    return "q8m" if any(LAYOUTS[name].mins for name in layouts) else "q8s"
