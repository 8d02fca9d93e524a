"""What llama.cpp's converter makes of layers with a linear scan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Config = Mapping[str, object]
TOP = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm"}
_MIXERS = ("mixer", "mamba")
LAYER = {
    "norm": "attn_norm",
    **{
        f"{mixer}.{name}": f"ssm_{key}"
        for mixer in _MIXERS
        for name, key in (
            *(("in_proj", "in"), ("conv1d", "conv1d")),
            *(("norm", "norm"), ("out_proj", "out")),
        )
    },
}
BARE = {
    f"{mixer}.{name}": f"ssm_{key}"
    for mixer in _MIXERS
    for name, key in (("dt_bias", "dt.bias"), ("A_log", "a"), ("D", "d"))
}
"""Names without a kind at their end."""
_FIELDS = {
    "state_size": "ssm.state_size",
    "conv_kernel": "ssm.conv_kernel",
    "n_groups": "ssm.group_count",
    "num_heads": "ssm.time_step_rank",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
}


def number(config: Config, *names: str) -> int:
    """Of the first of these names that the config has."""
    value = next(config[name] for name in names if name in config)
    assert isinstance(value, int)
    return value


def fields(config: Config) -> dict[str, object]:
    """Those that it writes beside what all models have, without the architecture's name."""
    found: dict[str, object] = {key: config[x] for x, key in _FIELDS.items() if x in config}
    expand = number(config, "expand", "mamba_expand")
    found["ssm.inner_size"] = expand * number(config, "hidden_size")
    if config["model_type"] == "mamba2":
        nothing = ("feed_forward_length", "attention.head_count")
        none = ("attention.layer_norm_epsilon", "attention.key_length", "attention.value_length")
        found |= {**dict.fromkeys(nothing, 0), **dict.fromkeys(none)}
        found["attention.layer_norm_rms_epsilon"] = config["layer_norm_epsilon"]
        return found | {"context_length": 1 << 20}
    types, heads = config["layer_types"], config["num_key_value_heads"]
    assert isinstance(types, list)
    found["attention.head_count_kv"] = [heads if x == "attention" else 0 for x in types]
    found["rope.scaling.finetuned"] = config["position_embedding_type"] == "rope"
    return found


def stored(target: str, values: Array, config: Config) -> tuple[Array, bool]:
    """A tensor as the file has it, and whether it is one of a scan that is always F32."""
    part = target.partition(".ssm_")[2]
    if part == "conv1d.weight":
        return values[:, 0], True
    if part == "a":
        return -np.exp(values)[:, None], True
    if part == "d":
        return values[:, None], True
    if part == "norm.weight":
        return values.reshape(number(config, "n_groups", "mamba_n_groups"), -1), True
    return values, False


def with_dense(tensors: Mapping[str, Array], config: Config) -> Mapping[str, Array]:
    """Of Granite 4 without experts: the MLP that every token sees is the only one."""
    if config["model_type"] != "granitemoehybrid" or config["num_local_experts"]:
        return tensors
    found: dict[str, Array] = {}
    for name, tensor in tensors.items():
        layer, _, rest = name.removeprefix("model.layers.").partition(".shared_mlp.")
        if rest == "input_linear.weight":
            gate, up = np.split(tensor, 2)
            found |= {f"blk.{layer}.ffn_gate.weight": gate, f"blk.{layer}.ffn_up.weight": up}
        else:
            found[f"blk.{layer}.ffn_down.weight" if rest else name] = tensor
    return found
