"""What a model that no family runs has beyond all of them, as far as its file says it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_INDEXER = "a sparse indexer of its attention"
_RWKV = "RWKV's recurrence"
_ENCODER = "an encoder and a decoder"
_CROSS = "cross-attention"
_AUDIO = "audio"
_VIDEO = "video"
_OF_NAMES: Mapping[str, str] = MappingProxyType(
    {
        _INDEXER: "deepseekv32 deepseekv4 deepseek32 deepseek4 glmmoedsa glm-dsa",
        _RWKV: "rwkv arwkv",
        _ENCODER: "t5 mt5 bart mbart marian pegasus",
        _CROSS: "mllama",
        _AUDIO: "whisper qwen2audio qwen3omni qwen2_5omni voxtral ultravox",
        _VIDEO: "videollama videollava llavanextvideo",
    }
)
"""What an architecture's name begins with."""
_OF_KEYS: Mapping[str, str] = MappingProxyType(
    {
        _INDEXER: "index_topk index_n_heads",
        _ENCODER: "is_encoder_decoder",
        _CROSS: "cross_attention_layers add_cross_attention",
        _AUDIO: "audio_config",
    }
)
"""Keys of config.json that say something."""


def beyond(architecture: str, config: Mapping[str, Any]) -> str:
    """Such as "audio"; empty where nothing says it."""
    name = architecture.lower()
    found = [what for what, begin in _OF_NAMES.items() if name.startswith(tuple(begin.split()))]
    text = config.get("text_config")
    both = {**config, **(text if isinstance(text, Mapping) else {})}
    found += [what for what, keys in _OF_KEYS.items() if any(map(both.get, keys.split()))]
    return found[0] if found else ""
