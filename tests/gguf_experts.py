"""How llama.cpp's converter lays out the experts of a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
_MATRICES = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps"}
_MATRICES |= {f"{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")}


def _halves(tensor: Array) -> list[Array]:
    return np.split(tensor, 2, axis=-2)


def _in_turns(tensor: Array) -> list[Array]:
    return [tensor[..., ::2], tensor[..., 1::2]]


def _turned_halves(tensor: Array) -> list[Array]:
    return [part.swapaxes(-1, -2) for part in np.split(tensor, 2, axis=-1)]


def _turned(tensor: Array) -> list[Array]:
    return [part.swapaxes(-1, -2) for part in _in_turns(tensor)]


_PARTS: Mapping[str, tuple[tuple[str, ...], Callable[[Array], list[Array]]]] = {
    "block_sparse_moe.input_linear.weight": (
        ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
        _halves,
    ),
    "shared_mlp.input_linear.weight": (("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), _halves),
    "feed_forward.experts.gate_up_proj": (
        ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
        _turned_halves,
    ),
    "feed_forward.experts.down_proj": (
        ("ffn_down_exps.weight",),
        lambda x: [x.swapaxes(-1, -2)],
    ),
    "mlp.experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), _turned),
    "mlp.experts.gate_up_proj_bias": (("ffn_gate_exps.bias", "ffn_up_exps.bias"), _in_turns),
    "mlp.experts.down_proj": (("ffn_down_exps.weight",), lambda x: [x.swapaxes(-1, -2)]),
    "mlp.experts.down_proj_bias": (("ffn_down_exps.bias",), lambda x: [x]),
}
"""What one tensor becomes."""


def with_experts(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Experts stacked, gate and up apart, under GGUF's names; the rest as it is."""
    found: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for name, tensor in tensors.items():
        layer, _, rest = (
            name.removeprefix("backbone.layers.").removeprefix("model.layers.").partition(".")
        )
        if rest in _PARTS:
            names, cut = _PARTS[rest]
            found |= {f"blk.{layer}.{x}": y for x, y in zip(names, cut(tensor), strict=True)}
        elif ".experts." in name and name.endswith(".weight"):
            stack = f"blk.{layer}.{_MATRICES[name.split('.')[-2]]}.weight"
            stacks.setdefault(stack, []).append(tensor)
        else:
            found[name] = tensor
    return found | {name: np.stack(parts) for name, parts in stacks.items()}
