"""What llama.cpp's converter makes of a Gemma 4 checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Config = Mapping[str, object]
TOP = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}
LAYER = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}
BARE = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}
"""Names without a kind at their end."""
_FIELDS = {
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "top_k_experts": "expert_used_count",
}


def _number(config: Config, name: str) -> int:
    value = config[name]
    assert isinstance(value, int)
    return value


def fields(config: Config) -> dict[str, object]:
    """Those that it writes beside what all models have, without the architecture's name."""
    types = config["layer_types"]
    assert isinstance(types, list)
    slides = [x == "sliding_attention" for x in types]
    full, dim = _number(config, "global_head_dim"), _number(config, "head_dim")
    found = {key: config[name] for name, key in _FIELDS.items() if name in config}
    found["attention.sliding_window_pattern"] = slides
    for part in ("key", "value"):
        found |= {f"attention.{part}_length": full, f"attention.{part}_length_swa": dim}
    if config["use_double_wide_mlp"]:
        inner, first = _number(config, "intermediate_size"), len(types)
        first -= _number(config, "num_kv_shared_layers")
        found["feed_forward_length"] = [inner * (1 + (i >= first)) for i in range(len(types))]
    if config.get("num_global_key_value_heads") is not None:
        n, own = (_number(config, x) for x in ("num_global_key_value_heads", "num_key_value_heads"))
        found["attention.head_count_kv"] = [own if is_slide else n for is_slide in slides]
    return found | {"rope.dimension_count": full, "rope.dimension_count_swa": dim}


def factors(config: Config) -> dict[str, Array]:
    """Of the layers that keep everything: pairs that do not turn are divided by a large number."""
    if config["model_type"] != "gemma4_text":
        return {}
    ropes, half = config["rope_parameters"], _number(config, "global_head_dim") // 2
    assert isinstance(ropes, Mapping)
    turned = int(half * ropes["full_attention"]["partial_rotary_factor"])
    values = [1.0] * turned + [1e30] * (half - turned)
    return {"rope_freqs.weight": np.array(values, np.float32)}
