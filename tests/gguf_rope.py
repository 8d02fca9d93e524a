"""What llama.cpp's converter writes of ropes, and of scales that follow from several fields."""

from __future__ import annotations

from collections.abc import Mapping
from math import log

import numpy as np
from numpy.typing import NDArray

Config = Mapping[str, object]
_YARN = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.yarn_attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}


def number(config: Config, name: str, default: float = 0.0) -> float:
    value = config.get(name, default)
    assert isinstance(value, int | float)
    return float(value)


def table(config: Config, kind: str = "full_attention") -> Config:
    """Of the layers of a kind, or of all."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    assert isinstance(found, Mapping)
    nested = found.get(kind, found)
    assert isinstance(nested, Mapping)
    return nested


def fields(config: Config) -> dict[str, object]:
    """Without the architecture's name before them."""
    rope, model = table(config), config["model_type"]
    kind, found = rope.get("rope_type", rope.get("type")), dict[str, object]()
    if "rope_theta" in rope:
        found["rope.freq_base"] = rope["rope_theta"]
    sliding = table(config, "sliding_attention")
    if "rope_theta" in sliding and sliding != rope:
        found["rope.freq_base_swa"] = sliding["rope_theta"]
    if "mrope_section" in rope and str(model).startswith(("qwen2", "qwen3_vl")):
        sections = rope["mrope_section"]
        assert isinstance(sections, list)
        found["rope.dimension_sections"] = [*sections, 0]
    if kind == "yarn":
        found["rope.scaling.type"] = "yarn"
        found |= {key: rope[name] for name, key in _YARN.items() if name in rope}
    if model == "ministral3":
        found["rope.scaling.yarn_log_multiplier"] = rope["mscale_all_dim"]
        found["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    if "kv_lora_rank" in config and "mscale_all_dim" in rope:
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * number(rope, "mscale_all_dim")
    if "alpha" in rope:
        dim = number(config, "head_dim")
        grown = number(rope, "alpha") ** (dim / (dim - 2))
        found["rope.freq_base"] = number(config, "rope_theta") * grown
        found |= {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
    if model == "phi3":
        original = number(config, "original_max_position_embeddings")
        grown = number(config, "max_position_embeddings") / original
        found["rope.scaling.original_context_length"] = int(original)
        found["rope.scaling.attn_factor"] = (1 + log(grown) / log(original)) ** 0.5
    if model == "minicpm":
        found["residual_scale"] = (
            number(config, "scale_depth") / number(config, "num_hidden_layers") ** 0.5
        )
        found["logit_scale"] = number(config, "hidden_size") / number(config, "dim_model_base")
        found["rope.scaling.type"] = "longrope"
    for name in {"partial_rotary_factor", "rotary_pct"} & config.keys():
        shared = number(config, "hidden_size") / number(config, "num_attention_heads")
        dim = number(config, "head_dim", shared)
        found["rope.dimension_count"] = int(dim * number(config, name))
    return found


def factors(config: Config) -> dict[str, NDArray[np.float32]]:
    """Tensors of longrope."""
    return {
        f"rope_factors_{name}.weight": np.array(table(config)[f"{name}_factor"], np.float32)
        for name in ("long", "short")
        if f"{name}_factor" in table(config)
    }
