"""What llama.cpp's converter makes of layers with a linear scan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tests import gguf_rope

Array = NDArray[np.float32]
Config = Mapping[str, object]
TOP = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm"}
_MIXERS = ("mixer", "mamba")
_DELTA = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
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
    **{f"self_attn.{x}_conv1d": f"ssm_conv1d_{x}" for x in "qkv"},
    **{f"self_attn.{x}_{y}_proj": f"ssm_{x}_{y}" for x in "fg" for y in "ab"},
    "self_attn.b_proj": "ssm_beta",
    "self_attn.o_norm": "ssm_norm",
    **{
        f"linear_attn.{name}": key
        for name, key in (
            *(("in_proj_qkv", "attn_qkv"), ("in_proj_z", "attn_gate"), ("in_proj_a", "ssm_alpha")),
            *(("in_proj_b", "ssm_beta"), ("in_proj_ba", "ssm_ba"), ("conv1d", "ssm_conv1d")),
            *(("norm", "ssm_norm"), ("out_proj", "ssm_out")),
        )
    },
}
BARE = {
    f"{mixer}.{name}": f"ssm_{key}"
    for mixer in (*_MIXERS, "linear_attn", "self_attn")
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
    "mamba_num_heads": "ssm.time_step_rank",
    "ssm_state_size": "ssm.state_size",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}


def number(config: Config, *names: str) -> int:
    """Of the first of these names that the config has."""
    value = next(config[name] for name in names if name in config)
    assert isinstance(value, int)
    return value


def scan_fields(config: Config) -> dict[str, object]:
    return {key: config[x] for x, key in _FIELDS.items() if x in config}


def fields(config: Config) -> dict[str, object]:
    """Those that it writes beside what all models have, without the architecture's name."""
    found = scan_fields(config)
    if config["model_type"] in _DELTA:
        return found | _delta_fields(config)
    if config["model_type"] == "falcon_h1":
        return found | {"ssm.inner_size": config["mamba_d_ssm"], "embedding_scale": None}
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


def kimi_fields(config: Config) -> dict[str, object]:
    """Sizes of nets, and KV heads where layers attend."""
    nets = config["linear_attn_config"]
    assert isinstance(nets, Mapping)
    rank, rope, key = (
        number(config, name) for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
    )
    layers = range(1, number(config, "num_hidden_layers") + 1)
    return {
        "attention.head_count_kv": [int(i in nets["full_attn_layers"]) for i in layers],
        "attention.key_length": rank + rope,
        "attention.key_length_mla": key + rope,
        "ssm.conv_kernel": nets["short_conv_kernel_size"],
        "kda.head_dim": nets["head_dim"],
        "expert_gating_func": 2,
    }


def _delta_fields(config: Config) -> dict[str, object]:
    heads, dim = number(config, "linear_num_value_heads"), number(config, "linear_value_head_dim")
    types, share = config["layer_types"], config["partial_rotary_factor"]
    assert isinstance(types, list) and isinstance(share, float)
    drafts = number(config, "mtp_num_hidden_layers") if "mtp_num_hidden_layers" in config else 0
    recurrent = [x == "linear_attention" for x in types]
    found: dict[str, object] = {
        "ssm.inner_size": heads * dim,
        "attention.recurrent_layers": [*recurrent, *[False] * drafts],
        "full_attention_interval": 4,
        "rope.dimension_count": int(number(config, "head_dim") * share),
    }
    if drafts:
        found |= {"nextn_predict_layers": drafts, "block_count": len(types) + drafts}
    own = gguf_rope.table(config).get("mrope_section", [11, 11, 10])
    assert isinstance(own, list)
    sections = {"rope.dimension_sections": [*own, 0]}
    return found | (sections if config["model_type"] != "qwen3_next" else {})


def stored(target: str, values: Array, config: Config) -> tuple[Array, bool]:
    """A tensor as the file has it, and whether it is one of a scan that is always F32."""
    part = target.partition(".ssm_")[2]
    if config["model_type"] == "kimi_linear":
        values = -np.exp(values) if part == "a" else values
        return (values[None], True) if part.startswith("conv1d") else (values, part == "a")
    if config["model_type"] in _DELTA:
        return _of_delta(target, part, values, config)
    if part == "conv1d.weight":
        return values[:, 0], True
    if part == "a":
        return -np.exp(values)[:, None], True
    if part == "d":
        return values[:, None], True
    if part == "norm.weight":
        return values.reshape(number(config, "n_groups", "mamba_n_groups"), -1), True
    return values, False


def _of_delta(target: str, part: str, values: Array, config: Config) -> tuple[Array, bool]:
    """Norms are one more, but for that of a delta net. Qwen3.5 has heads of values that share keys
    far apart."""
    values = values[:, 0] if part == "conv1d.weight" else values
    is_tiled = config["model_type"] != "qwen3_next"
    keys, heads = number(config, "linear_num_key_heads"), number(config, "linear_num_value_heads")
    order = np.arange(heads).reshape(keys, -1).T.reshape(-1)
    columns = np.arange(heads * number(config, "linear_value_head_dim")).reshape(heads, -1)
    rows = columns[order].reshape(-1)
    first = 2 * keys * number(config, "linear_key_head_dim")
    if is_tiled and ("attn_qkv" in target or part == "conv1d.weight"):
        values = np.concatenate([values[:first], values[first:][rows]])
    elif is_tiled and "attn_gate" in target:
        values = values[rows]
    elif is_tiled and part == "out.weight":
        values = np.ascontiguousarray(values[:, rows])
    elif is_tiled and part in ("alpha.weight", "beta.weight", "a", "dt.bias"):
        values = values[order]
    if part == "a":
        values = -np.exp(values)
    if "norm" in target and not part:
        values = values + np.float32(1.0)
    return values, part == "conv1d.weight"


def with_parts(tensors: Mapping[str, Array], config: Config) -> Mapping[str, Array]:
    """With the two parts of what a delta net of Qwen3-Next reads and is gated with."""
    if config["model_type"] != "qwen3_next":
        return with_dense(tensors, config)
    keys, dim = number(config, "linear_num_key_heads"), number(config, "linear_key_head_dim")
    inner = number(config, "linear_num_value_heads") * number(config, "linear_value_head_dim")
    found: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if not name.endswith("in_proj_qkvz.weight"):
            found[name] = tensor
            continue
        each = tensor.reshape(keys, -1, tensor.shape[1])
        cuts = np.cumsum([dim, dim, inner // keys])
        parts = [x.reshape(-1, tensor.shape[1]) for x in np.split(each, cuts, axis=1)]
        layer = name.removeprefix("model.layers.").partition(".")[0]
        found[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts[:3])
        found[f"blk.{layer}.attn_gate.weight"] = parts[3]
    return found


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
