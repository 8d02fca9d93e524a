"""How llama.cpp's converter lays out the matrices of latent attention."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
HEADS, RANK, KEY, VALUE = 4, 64, 32, 24
"""Of the tiny models."""


def with_latents(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Matrices of keys, transposed, and values apart."""
    found: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if ".kv_b_proj." not in name:
            found[name] = tensor
            continue
        heads = tensor.reshape(HEADS, KEY + VALUE, RANK)
        found[name.replace("kv_b", "k_b")] = heads[:, :KEY].swapaxes(1, 2)
        found[name.replace("kv_b", "v_b")] = heads[:, KEY:]
    return found


def joined(keys: Array, values: Array) -> Array:
    """The tensor that ``with_latents`` took apart."""
    return np.concatenate([keys.swapaxes(1, 2), values], axis=1).reshape(-1, RANK)


def as_older(
    metadata: Mapping[str, object], tensors: Mapping[str, tuple[str, Array]]
) -> tuple[dict[str, object], dict[str, tuple[str, Array]]]:
    """What older converters wrote: both in one tensor, sizes of heads in place of what is kept, no
    rule of routing where it is softmax."""
    values = {
        key.replace("_mla", ""): value for key, value in metadata.items() if key.endswith("_mla")
    }
    kept = {key: x for key, x in metadata.items() if not key.endswith("_mla")} | values
    kept["deepseek2.attention.head_count_kv"] = HEADS
    if kept["deepseek2.expert_gating_func"] == 1:
        del kept["deepseek2.expert_gating_func"]
    found: dict[str, tuple[str, Array]] = {}
    for name, (format, tensor) in tensors.items():
        if "attn_v_b" in name:
            keys = tensors[name.replace("attn_v_b", "attn_k_b")][1]
            found[name.replace("attn_v_b", "attn_kv_b")] = (format, joined(keys, tensor))
        elif "attn_k_b" not in name:
            found[name] = (format, tensor)
    return kept, found
