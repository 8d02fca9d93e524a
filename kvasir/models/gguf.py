"""Readers of GGUF metadata, one for each family; fields as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvasir.formats.types import TensorInfo
from kvasir.models.keys import HeadFields, Keys, read_experts, read_heads
from kvasir.models.spec import MAX_LAYERS, BlockSpec, ModelConfig, RopeConfig

Tensors = Mapping[str, TensorInfo]
_HEADS = HeadFields(
    "embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length"
)
_ROPE_FACTORS = "rope_freqs.weight"
_EXPERT_VARIANTS = ("expert_shared_count", "expert_group_count", "leading_dense_block_count")
_SCALES = (
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "attention.scale",
    "rope.scale_linear",
)
"""Constants of relatives of llama that none of the families here has; 1 changes nothing."""


def read_llama(keys: Keys, tensors: Tensors, block: BlockSpec, family: str) -> ModelConfig:
    """Architecture "llama": Llama 2/3, Mistral, SmolLM, TinyLlama."""
    config = _common(keys, tensors, block, family)
    block = replace(
        block,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
    )
    window = keys.integer("attention.sliding_window", 0, least=0)
    return replace(config, block=block, windows=(window,) * config.n_layers if window else ())


def read_qwen(keys: Keys, tensors: Tensors, block: BlockSpec, family: str) -> ModelConfig:
    """Architectures "qwen2" and "qwen3"; a window is never written."""
    keys.refuse("attention.sliding_window", 0)
    return _common(keys, tensors, block, family)


def read_mixtral(keys: Keys, tensors: Tensors, block: BlockSpec, family: str) -> ModelConfig:
    """Architecture "llama" with experts."""
    config = read_llama(keys, tensors, block, family)
    for name in _EXPERT_VARIANTS:
        keys.refuse(name, 0)
    return replace(config, experts=read_experts(keys, "expert_count", "expert_used_count"))


def read_gemma3(keys: Keys, tensors: Tensors, block: BlockSpec, family: str) -> ModelConfig:
    config = _common(keys, tensors, block, family, theta=1e6)
    window = keys.integer("attention.sliding_window", 0, least=0)
    pattern = keys.integer("attention.sliding_window_pattern", 6)
    return replace(
        config,
        windows=tuple(window if (layer + 1) % pattern else 0 for layer in range(config.n_layers)),
        window_rope=RopeConfig(keys.number("rope.freq_base_swa", 1e4, least=1.0)),
        attention_scale=_gemma_scale(config),
        attention_softcap=keys.number("attn_logit_softcapping", 0.0),
        final_softcap=keys.number("final_logit_softcapping", 0.0),
        embed_scale=config.hidden_size**0.5,
    )


def _gemma_scale(config: ModelConfig) -> float:
    """No field says it: 1 / sqrt(head_dim), but the 27B model (62 layers) scales by its width."""
    size = config.hidden_size // config.n_heads if config.n_layers == 62 else config.head_dim
    return float(size**-0.5)


def _common(
    keys: Keys, tensors: Tensors, block: BlockSpec, family: str, *, theta: float = 1e4
) -> ModelConfig:
    for name in _SCALES:
        keys.refuse(name, 1.0)
    hidden, heads, kv_heads, dim = read_heads(keys, _HEADS)
    for name in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(name, dim) != dim:
            raise keys.error(name, keys.raw(name), f"the head size {dim}")
    return ModelConfig(
        family=family,
        kind="gguf",
        block=block,
        vocab_size=_vocab_size(keys, tensors),
        hidden_size=hidden,
        ffn_size=keys.integer("feed_forward_length"),
        n_layers=keys.integer("block_count", most=MAX_LAYERS),
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=dim,
        max_positions=keys.integer("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        attention_scale=dim**-0.5,
        rope=_rope(keys, tensors, dim, theta),
        tied="output.weight" not in tensors,
    )


def _vocab_size(keys: Keys, tensors: Tensors) -> int:
    """Rows of the embedding: the metadata may leave out padding."""
    embed = tensors.get("token_embd.weight")
    if embed is not None and len(embed.shape) == 2:
        return embed.shape[0]
    return keys.integer("vocab_size")


def _rope(keys: Keys, tensors: Tensors, head_dim: int, default_theta: float) -> RopeConfig:
    theta = keys.number("rope.freq_base", default_theta, least=1.0)
    scaling = keys.word("rope.scaling.type", ("none", "linear"), "none")
    factors = tensors.get(_ROPE_FACTORS)
    if factors is not None:
        if scaling != "none":
            raise keys.error("rope.scaling.type", scaling, f"none beside tensor {_ROPE_FACTORS}")
        if factors.shape != (head_dim // 2,):
            raise keys.error(
                _ROPE_FACTORS, factors.shape, f"{head_dim // 2} factors, one for each pair"
            )
        values = tuple(float(f) for f in factors.decode())
        if not all(0 < value < float("inf") for value in values):
            raise keys.error(_ROPE_FACTORS, values, "positive factors")
        return RopeConfig(theta, "factors", factors=values)
    if scaling == "linear":
        return RopeConfig(theta, "linear", keys.number("rope.scaling.factor", least=1.0))
    return RopeConfig(theta)
