"""The layout that the native kernels read each file format in."""

from __future__ import annotations

from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.formats.types import MODULE_FORMATS

LAYOUT_OF_FORMAT = {
    "Q4_0": "q4z",
    "Q4_1": "q4m",
    "Q5_0": "q5z",
    "Q5_1": "q5m",
    "Q8_0": "q8",
    "Q2_K": "q2k",
    "Q3_K": "q3k",
    "Q4_K": "q4k",
    "Q5_K": "q5k",
    "Q6_K": "q6k",
    "IQ4_NL": "iq4",
    "IQ4_XS": "iq4xs",
    "MXFP4": "mxfp4",
    "IQ2_XXS": "iq2xxs",
    "IQ2_XS": "iq2xs",
    "IQ2_S": "iq2s",
    "IQ3_XXS": "iq3xxs",
    "IQ3_S": "iq3s",
    "IQ1_S": "iq1s",
    "IQ1_M": "iq1m",
    "TQ1_0": "tq1",
    "TQ2_0": "tq2",
    "BF16": "bf16",
    "F16": "f16",
    "F32": "f32",
    **{name: name.lower() for name in MODULE_FORMATS},
    "QS": "q8s",
    "QZ": "q8m",
    "NVFP4M": "nvfp4",
}
"""The layout made for each format. Any format of integers fits q8s too, or q8m where it has
minimums: 8-bit integers with f32 scales, every value as it was, more memory."""


def common_layout(layouts: set[str]) -> str:
    """A layout that holds the values of all: 8-bit integers where all are integers, else f32."""
    if len(layouts) == 1:
        return min(layouts)
    if any(LAYOUTS[name].act != "q8" for name in layouts):
        return "f32"
    return "q8m" if any(LAYOUTS[name].mins for name in layouts) else "q8s"
