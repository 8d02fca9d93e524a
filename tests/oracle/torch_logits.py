"""Logits and hidden states of a Hugging Face folder by ``transformers``: float32, eager attention,
CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoModelForCausalLM


def logits(folder: Path, tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """After every token, f32 [tokens, vocab].

    transformers 5 reads Gemma 3's ``attn_logit_softcapping`` but its attention never receives it;
    its eager attention does compute it when called with ``softcap``, which is done here.
    """
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    is_gemma3 = model.config.model_type.startswith("gemma3")
    cap = model.config.attn_logit_softcapping if is_gemma3 else None
    extra = {} if cap is None else {"softcap": cap}
    with torch.no_grad():
        out = model(torch.tensor([tokens]), use_cache=False, **extra).logits[0]
    return np.asarray(out.numpy(), np.float32)


def hidden_states(folder: Path, tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """After the final norm, of every token, f32 [tokens, hidden]."""
    model = AutoModel.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    is_gemma3 = model.config.model_type.startswith("gemma3")
    cap = model.config.attn_logit_softcapping if is_gemma3 else None
    extra = {} if cap is None else {"softcap": cap}
    with torch.no_grad():
        out = model(torch.tensor([tokens]), use_cache=False, **extra).last_hidden_state[0]
    return np.asarray(out.numpy(), np.float32)
