"""Which arithmetic a model is computed in."""

from __future__ import annotations

from kvasir.config.resolved import DType


def choose_dtype(asked: str, weights: str) -> tuple[DType, str]:
    """The numerics mode and why, of what the options say and the type of most weights; "auto"
    survives only where weights are quantized."""
    if asked == "float32":
        return "float32", "as asked"
    if asked == "bfloat16":
        return "bfloat16", "as asked"
    if weights == "quantized":
        return "auto", "quantized weights, activations rounded to int8 (FP8, NF4, FP4: to bf16)"
    if weights == "float16":
        return "bfloat16", "the weights are float16, rounded; --dtype float32 keeps every bit"
    return ("float32" if weights == "float32" else "bfloat16"), f"the weights are {weights}"
