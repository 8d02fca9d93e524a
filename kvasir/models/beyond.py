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
        "deepseekv32": _INDEXER,
        "deepseekv4": _INDEXER,
        "deepseek32": _INDEXER,
        "deepseek4": _INDEXER,
        "glmmoedsa": _INDEXER,
        "glm-dsa": _INDEXER,
        "rwkv": _RWKV,
        "arwkv": _RWKV,
        "t5": _ENCODER,
        "mt5": _ENCODER,
        "bart": _ENCODER,
        "mbart": _ENCODER,
        "marian": _ENCODER,
        "pegasus": _ENCODER,
        "mllama": _CROSS,
        "whisper": _AUDIO,
        "qwen2audio": _AUDIO,
        "qwen3omni": _AUDIO,
        "qwen2_5omni": _AUDIO,
        "voxtral": _AUDIO,
        "ultravox": _AUDIO,
        "videollama": _VIDEO,
        "videollava": _VIDEO,
        "llavanextvideo": _VIDEO,
    }
)
"""By what an architecture's name begins with."""
_OF_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "index_topk": _INDEXER,
        "index_n_heads": _INDEXER,
        "is_encoder_decoder": _ENCODER,
        "cross_attention_layers": _CROSS,
        "add_cross_attention": _CROSS,
        "audio_config": _AUDIO,
    }
)
"""By keys of config.json that say something."""


def beyond(architecture: str, config: Mapping[str, Any]) -> str:
    """Such as "audio"; empty where nothing says it."""
    name = architecture.lower()
    found = [what for begin, what in _OF_NAMES.items() if name.startswith(begin)]
    text = config.get("text_config")
    both = {**config, **(text if isinstance(text, Mapping) else {})}
    found += [what for key, what in _OF_KEYS.items() if both.get(key)]
    return found[0] if found else ""
