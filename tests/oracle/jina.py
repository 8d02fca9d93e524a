"""jina-embeddings-v2 made of the layers of ``transformers``' BERT: no release has its own code.

A mask of numbers stands for ALiBi, and Bloom's slopes are those of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

PLAIN = {
    "mlp.gated_layers": "intermediate.both",
    "mlp.wo": "output.dense",
    "mlp.layernorm": "output.LayerNorm",
}
CODE = {
    "mlp.up_gated_layer": "intermediate.both",
    "mlp.down_layer": "output.dense",
    "layer_norm_2": "output.LayerNorm",
    "self.layer_norm_q": "self.query.norm",
    "self.layer_norm_k": "self.key.norm",
    "self.query.weight": "self.query.linear.weight",
    "self.query.bias": "self.query.linear.bias",
    "self.key.weight": "self.key.linear.weight",
    "self.key.bias": "self.key.linear.bias",
    "attention.output.": "attention.output.once.",
    "layer_norm_1": "attention.output.norm",
}
"""Of its tensors, and of those of ``-code``, the names in such a model."""


class Gated(nn.Module):
    """GELU of one half times the other."""

    def __init__(self, config: BertConfig, gate_first: bool) -> None:
        super().__init__()
        self.both = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.gate_first = gate_first

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.both(x).chunk(2, dim=-1)
        gate, up = (one, other) if self.gate_first else (other, one)
        return nn.functional.gelu(gate) * up


class Normed(nn.Module):
    """A linear, and a norm behind it."""

    def __init__(self, linear: nn.Linear, eps: float) -> None:
        super().__init__()
        self.linear, self.norm = linear, nn.LayerNorm(linear.out_features, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.linear(x))
        return out


class Twice(nn.Module):
    """What a part of a block gives, added to its input once more and normed."""

    def __init__(self, once: nn.Module, config: BertConfig) -> None:
        super().__init__()
        self.once = once
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, added_to: Tensor) -> Tensor:
        out: Tensor = self.norm(added_to + self.once(x, added_to))
        return out


def jina_states(folder: Path, config: Mapping[str, Any], tokens: tuple[int, ...]) -> Tensor:
    """After the last norm, of every token, f32 [tokens, hidden]."""
    own = ("architectures", "model_type", "position_embedding_type", "torch_dtype")
    bert = BertConfig(**{x: y for x, y in config.items() if x not in own})
    bert._attn_implementation = "eager"
    tensors = load_file(folder / "model.safetensors")
    is_code = any("layer_norm_q" in name for name in tensors)
    model = _model(bert, is_code)
    table = "embeddings.position_embeddings.weight"
    named = {table: torch.zeros(bert.max_position_embeddings, bert.hidden_size)}
    for name, tensor in tensors.items():
        for before, after in (CODE if is_code else PLAIN).items():
            name = name.replace(before, after)
        named[name] = tensor
    model.load_state_dict({x: y for x, y in named.items() if not x.startswith("pooler.")})
    at = torch.arange(len(tokens))
    slopes = build_alibi_tensor(torch.ones(1, 2), bert.num_attention_heads, torch.float32)[:, 0, 1]
    lean = -slopes[:, None, None] * (at[:, None] - at[None, :]).abs()
    with torch.no_grad():
        states: Tensor = model.eval()(torch.tensor([tokens]), attention_mask=lean[None])[0][0]
    return states


def _model(config: BertConfig, is_code: bool) -> BertModel:
    model = BertModel(config, add_pooling_layer=False)
    for layer in model.encoder.layer:
        layer.intermediate = Gated(config, gate_first=not is_code)
        if is_code:
            attention, eps = layer.attention.self, config.layer_norm_eps
            attention.query, attention.key = (
                Normed(x, eps) for x in (attention.query, attention.key)
            )
            layer.attention.output = Twice(layer.attention.output, config)
    return model
