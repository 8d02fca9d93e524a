"""What families have beyond norm, attention to all that came before, rope and a gated MLP; and what
tests compare of each. ``kvasir inspect families`` prints both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvasir.models.family import Family, always

Rule = Callable[[Family], bool]


def _has(*fields: str) -> Rule:
    """Any of the fields, but one that is always as if it were not there."""
    return lambda family: any(
        family.fields[name].default not in (False, 0, None) or any(family.fields[name][:2])
        for name in fields
        if name in family.fields
    )


def _is(flag: str, value: object = True) -> Rule:
    return lambda family: getattr(family.block, flag) == value


FEATURES: Mapping[str, Rule] = MappingProxyType(
    {
        "encoder": _is("both_ways"),
        "layer norm": lambda family: family.block.norm != "rms",
        "QK norm": lambda family: family.block.qk_norm != "none",
        "biases": _has("qkv_bias", "o_bias", "mlp_bias", "head_bias"),
        "parallel": _has("parallel"),
        "post-norms": lambda family: family.block.post_norms or family.block.sum_norms,
        "ungated": _is("gated", False),
        "windows": _has("window"),
        "chunks": _is("chunked"),
        "own rope of windows": _has("window_theta"),
        "partial rope": _has("rotary_share", "rotary_dim"),
        "rope of neighbours": _is("interleaved_rope"),
        "layers without rope": lambda family: (
            family.full_without_rope or _has("no_rope_every", "rope_layers")(family)
        ),
        "learned positions": _has("learned_positions"),
        "ALiBi": _has("positions_by"),
        "sinks": _is("sinks"),
        "soft caps": _has("attention_softcap", "final_softcap"),
        "multipliers": _has("embed_scale", "residual_scale", "residual_depth", "logit_divisor"),
        "own size of full heads": _has("full_head_dim"),
        "shared KV": _has("shared_layers"),
        "layer embeddings": _has("layer_embed"),
        "streams": _has("n_streams"),
        "sparse gates": _has("sparsity"),
        "short convolutions": _has("n_taps"),
        "linear scans": _has("scan_rule"),
        "one-part layers": _has("parts"),
        "parallel mixers": lambda family: family.fields.get("scan_beside") == always(True),
        "output gate": _is("output_gate"),
        "latent attention": _has("latent_size"),
        "experts": _has("n_experts"),
        "shared experts": _has("shared_size", "n_shared"),
        "routing bias": _has("choice_bias"),
        "M-RoPE": lambda family: family.rope_axes is not None,
        "images": lambda family: family.tower is not None,
        "image spans": _is("spans"),
    }
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CHECKS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "logits": _names(
            """bert cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 exaone_moe
            falcon falcon_h1 falcon_two_norms gemma gemma2 gemma3 gemma3_vision gemma3n gemma4
            gemma4_vision gemma_embedding glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_neox gpt_oss
            gptj granite granite_hybrid granite_moe hunyuan_v1_dense hunyuan_v1_moe
            internvl_qwen2 internvl_qwen3 jina_v2 jina_v2_code jina_v3 jina_v3_saved kimi_linear
            lfm2 lfm2_moe llama llama4 llava_onevision mamba2 minicpm minimax_m2 ministral
            ministral3 mistral mistral3 mistral3_ministral3 mixtral modern_bert nemotron_h
            nomic_bert olmo2 olmo3 olmoe phi phi3 pixtral qwen2 qwen2_5_vl qwen2_moe qwen2_vl
            qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_vl qwen3_5_vl qwen3_moe qwen3_next qwen3_vl
            qwen3_vl_moe qwen3_vl_moe_saved roberta seed_oss smollm3 smolvlm stablelm starcoder2"""
        ),
        "file": _names(
            """bert cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 exaone_moe
            falcon falcon_h1 falcon_two_norms gemma gemma3n gemma4 gemma_embedding glm glm4
            glm4_moe glm4_moe_lite gpt2 gpt_neox gpt_oss granite granite_hybrid granite_moe
            hunyuan_v1_dense hunyuan_v1_moe jina_v2 jina_v2_code jina_v3 jina_v3_saved
            kimi_linear lfm2 lfm2_moe llama llama4 mamba2 minicpm minimax_m2 ministral3 mixtral
            modern_bert nemotron_h nomic_bert olmo2 olmo3 olmoe phi phi3 qwen2 qwen2_moe qwen3
            qwen3_5 qwen3_5_moe qwen3_moe qwen3_next roberta seed_oss smollm3 stablelm
            starcoder2"""
        ),
        "exact": _names(
            """deepseek_v2 deepseek_v3 falcon_h1 gemma3 gemma3_vision gemma3n gemma4 gemma4_vision
            glm4_moe gpt2 gpt_oss granite_hybrid internvl_qwen2 kimi_linear lfm2 lfm2_moe llama
            llama4 llava_onevision mamba2 ministral3 mistral3 mixtral nemotron_h qwen2 qwen2_5_vl
            qwen3_5 qwen3_5_moe qwen3_5_vl qwen3_next qwen3_vl smolvlm"""
        ),
        "real": _names("bert gemma3 llama nomic_bert"),
    }
)
"""By families. "logits": goldens by ``transformers``, of vectors where a family writes nothing;
"file": the same from the file that llama.cpp's converter makes; "exact": the exactness harness, on
the native executor; "real": tokens or vectors of real weights. ``tests/unit/test_features.py``
compares this with what the tests run."""


def features(family: Family) -> list[str]:
    """Words of ``FEATURES``."""
    return [word for word, rule in FEATURES.items() if rule(family)]


def checks(family: Family) -> list[str]:
    """Words of ``CHECKS``."""
    return [word for word, names in CHECKS.items() if family.name in names]
