"""Logits and hidden states of a Hugging Face folder by ``transformers``: float32, eager attention,
CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GraniteConfig,
)

from tests.oracle.jina import jina_states

LENGTH = 64
"""Of the engines that vectors are compared with; ``tests.loading`` has 128."""


def logits(folder: Path, tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """After every token, f32 [tokens, vocab]."""
    config = json.loads((folder / "config.json").read_text())
    kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    return _rows(kind, folder, tokens, "logits", 128)


def hidden_states(folder: Path, tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """After the final norm, of every token, f32 [tokens, hidden]."""
    config = json.loads((folder / "config.json").read_text())
    if config.get("position_embedding_type") == "alibi":
        return np.asarray(jina_states(folder, config, tokens).numpy(), np.float32)
    return _rows(AutoModel, folder, tokens, "last_hidden_state", LENGTH)


def _rows(
    kind: Any, folder: Path, tokens: tuple[int, ...], what: str, length: int
) -> NDArray[np.float32]:
    """transformers 5 reads Gemma 3's ``attn_logit_softcapping`` but its attention never receives
    it; its eager attention does compute it when called with ``softcap``, which is done here. Ropes
    that follow from the length get ``length``, by tokens behind the prompt.
    """
    config, n_tokens = json.loads((folder / "config.json").read_text()), len(tokens)
    rope = config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) in ("longrope", "dynamic"):
        tokens = (*tokens, *[5] * (length - n_tokens))
    model = kind.from_pretrained(
        folder, config=_granite(config), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    is_gemma3 = model.config.model_type in ("gemma3", "gemma3_text")
    cap = model.config.get_text_config().attn_logit_softcapping if is_gemma3 else None
    extra = {} if cap is None else {"softcap": cap}
    with torch.no_grad():
        out = model(torch.tensor([tokens]), use_cache=False, **extra)[what][0]
    return np.asarray(out.numpy()[:n_tokens], np.float32)


def _granite(config: dict[str, Any]) -> GraniteConfig | None:
    """What MiniCPM computes, whose own code no release of transformers has."""
    if config["model_type"] != "minicpm":
        return None
    scales = {
        "attention_multiplier": config["head_dim"] ** -0.5,
        "embedding_multiplier": config["scale_emb"],
        "residual_multiplier": config["scale_depth"] / config["num_hidden_layers"] ** 0.5,
        "logits_scaling": config["hidden_size"] / config["dim_model_base"],
    }
    return GraniteConfig(**{**config, **scales, "model_type": "granite"})
