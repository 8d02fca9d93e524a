"""What llama.cpp's converter calls the tensors and fields of a Hugging Face checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests import gguf_gemma3n, gguf_gemma4, gguf_hybrid, gguf_rope, gguf_scan
from tests.gguf_arch import ARCH

Config = Mapping[str, object]

_TOP = {
    **gguf_gemma3n.TOP,
    **gguf_gemma4.TOP,
    **gguf_scan.TOP,
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.final_layernorm": "output_norm",
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "transformer.word_embeddings": "token_embd",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "emb_ln": "token_embd_norm",
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
}
_LAYER = {
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.norm": "nextn.shared_head_norm",
    "shared_head.head": "nextn.shared_head_head",
    **gguf_gemma3n.LAYER,
    **gguf_gemma4.LAYER,
    **gguf_scan.LAYER,
    **gguf_hybrid.LAYER,
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
    "attention.query_key_value": "attn_qkv",
    "self_attention.query_key_value": "attn_qkv",
    "attn.c_attn": "attn_qkv",
    "self_attn.dense": "attn_output",
    "attention.dense": "attn_output",
    "self_attention.dense": "attn_output",
    "attn.c_proj": "attn_output",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.gated_layers": "ffn_up",
    "mlp.up_gated_layer": "ffn_up",
    "mlp.down_layer": "ffn_down",
    "attention.self.layer_norm_q": "attn_q_norm",
    "attention.self.layer_norm_k": "attn_k_norm",
    "layer_norm_1": "attn_norm_2",
    "layer_norm_2": "layer_output_norm",
    "mlp.wo": "ffn_down",
    "mlp.layernorm": "layer_output_norm",
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "attn.Wo": "attn_output",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
    "norm1": "attn_output_norm",
    "norm2": "layer_output_norm",
    "ln_attn": "attn_norm_2",
    "ln_mlp": "attn_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
    "self_attn.kv_b_proj": "attn_kv_b",
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.out_proj": "attn_output",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.output_linear": "ffn_down_exps",
    "shared_mlp.output_linear": "ffn_down_shexp",
    "mlp.router": "ffn_gate_inp",
    "feed_forward.router": "ffn_gate_inp",
    "mlp.gate.wg": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{
        f"{shared}.{part}_proj": f"ffn_{part}_shexp"
        for shared in (
            *("mlp.shared_expert", "mlp.shared_experts", "mlp.shared_mlp"),
            *("block_sparse_moe.shared_experts", "feed_forward.shared_expert"),
        )
        for part in ("gate", "up", "down")
    },
}
_BARE = {
    **gguf_gemma3n.BARE,
    **gguf_gemma4.BARE,
    **gguf_scan.BARE,
    **gguf_hybrid.BARE,
    "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "self_attn.sinks": "attn_sinks.weight",
}
"""Names without a kind at their end."""
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_POST = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_LAYER_NUMBER = re.compile(r".*?\b(?:layers?|h)\.(\d+)\.")
_NORMS = {"gemma3": _GEMMA, "gemma2": _GEMMA, "exaone4": _POST, "seed_oss": _POST, "gpt-oss": _POST}
_NORMS |= {"gemma-embedding": _GEMMA, "gemma4": _GEMMA, "gemma3n": _GEMMA}
_NORMS |= {"qwen3next": _POST, "qwen35": _POST, "qwen35moe": _POST}
_JINA = {
    "mixer.Wqkv": "attn_qkv",
    "mixer.out_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
}
_NORMS |= {"olmo2": _POST, "glm4moe": _POST, "jina-bert-v3": _JINA}
"""By architecture, where its norms are called otherwise."""
_FIELDS = {
    "max_position_embeddings": "context_length",
    "model_max_length": "context_length",
    "num_experts_per_token": "expert_used_count",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "norm_eps": "attention.layer_norm_epsilon",
    "local_attention": "attention.sliding_window",
    "global_attn_every_n_layers": "attention.sliding_window_pattern",
    "global_rope_theta": "rope.freq_base",
    "local_rope_theta": "rope.freq_base_swa",
    "logit_scale": "logit_scale",
    "use_parallel_residual": "use_parallel_residual",
    "rotary_emb_base": "rope.freq_base",
    "num_kv_heads": "attention.head_count_kv",
    "ffn_hidden_size": "feed_forward_length",
    "n_inner": "feed_forward_length",
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_positions": "context_length",
    "rope_theta": "rope.freq_base",
    "vocab_size": "vocab_size",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "moe_num_experts": "expert_count",
    "moe_k": "expert_used_count",
    "n_routed_experts": "expert_count",
    "n_shared_experts": "expert_shared_count",
    "num_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale",
    "first_k_dense_replace": "leading_dense_block_count",
    "num_dense_layers": "leading_dense_block_count",
    "num_nextn_predict_layers": "nextn_predict_layers",
    "rotary_dim": "rope.dimension_count",
    "moe_num_shared_experts": "expert_shared_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "rope_local_base_freq": "rope.freq_base_swa",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "v_head_dim": "attention.value_length_mla",
    "qk_rope_head_dim": "rope.dimension_count",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "scale_emb": "embedding_scale",
}


def gguf_arch(config: Config) -> str:
    kind = str(config["model_type"])
    if config.get("use_bidirectional_attention"):
        return "gemma-embedding"
    if config.get("position_embedding_type") == "alibi":
        return "jina-bert-v2"
    if kind == "nemotron_h":
        return gguf_hybrid.arch(config)
    return ARCH.get(kind, kind)


def gguf_name(name: str, arch: str) -> str:
    if name.startswith("blk."):
        return name
    number = _LAYER_NUMBER.match(name)
    if number is not None and name[number.end() :] in _BARE:
        return f"blk.{number[1]}.{_BARE[name[number.end() :]]}"
    stem, kind = name.rsplit(".", 1)
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    assert number is not None
    return f"blk.{number[1]}.{(_LAYER | _NORMS.get(arch, {}))[stem[number.end() :]]}.{kind}"


def gguf_fields(config: Config) -> dict[str, object]:
    """Without the architecture's name before them."""
    said = {name: value for name, value in config.items() if value is not None}
    fields = {_FIELDS[name]: value for name, value in said.items() if name in _FIELDS}
    if "head_dim" in said:
        fields |= {f"attention.{part}_length": said["head_dim"] for part in ("key", "value")}
    if config.get("sliding_window") and gguf_arch(config) != "starcoder2":
        fields["attention.sliding_window"] = config["sliding_window"]
    fields |= _block_count(config)
    if gguf_arch(config) == "glm4moe":
        fields["expert_weights_norm"] = config["norm_topk_prob"]
        fields["expert_gating_func"] = 2
    if gguf_arch(config) in ("gpt-oss", "minimax-m2"):
        fields["expert_feed_forward_length"] = config["intermediate_size"]
    if said.get("multi_query") and not said["new_decoder_architecture"]:
        fields["attention.head_count_kv"] = 1
    if gguf_arch(config).endswith(("bert", "bert-v2", "embedding")):
        fields["attention.causal"] = False
    if config["model_type"] == "modernbert":
        fields["hidden_activation"] = config["hidden_activation"]
    if config["model_type"] == "xlm-roberta":
        longest = gguf_rope.number(config, "max_position_embeddings")
        first = gguf_rope.number(config, "pad_token_id") + 1
        fields["context_length"] = int(longest - first)
    types = config.get("layer_types")
    if gguf_arch(config) in ("exaone4", "exaone-moe", "olmo2") and isinstance(types, list):
        fields["attention.sliding_window_pattern"] = [x == "sliding_attention" for x in types]
    if gguf_arch(config) in ("gemma3", "gemma-embedding"):
        fields |= {
            "attention.sliding_window_pattern": 3,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        }
    if more := _MORE.get(gguf_arch(config)):
        fields |= more(config)
    return {name: x for name, x in fields.items() if x is not None} | gguf_rope.fields(config)


def _of_lfm2(config: Config) -> dict[str, object]:
    """The inner size as it is, and KV heads of each layer."""
    heads, types = config["num_key_value_heads"], config["layer_types"]
    assert isinstance(types, list)
    fields: dict[str, object] = {
        "attention.head_count_kv": [heads if x == "full_attention" else 0 for x in types],
        "attention.layer_norm_epsilon": None,
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "shortconv.l_cache": config["conv_L_cache"],
    }
    if config["model_type"] == "lfm2_moe":
        return fields | {"expert_gating_func": 2}
    multiple = int(gguf_rope.number(config, "block_multiple_of"))
    two_thirds = int(2 * gguf_rope.number(config, "intermediate_size") / 3)
    inner = int(gguf_rope.number(config, "block_ffn_dim_multiplier") * two_thirds)
    return fields | {"feed_forward_length": -(-inner // multiple) * multiple}


def _of_hunyuan(config: Config) -> dict[str, object]:
    """What config.json lists for each layer is one number."""
    listed = {
        "expert_used_count": config["moe_topk"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_expert"],
    }
    fields = {name: x[0] if isinstance(x, list) else x for name, x in listed.items()}
    return fields | {"expert_shared_feed_forward_length": config["intermediate_size"]}


def _of_exaone_moe(config: Config) -> dict[str, object]:
    names = ("moe_intermediate_size", "num_shared_experts")
    size, n_shared = (int(gguf_rope.number(config, name)) for name in names)
    return {
        "expert_shared_feed_forward_length": size * n_shared,
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": 2,
        "rope.scaling.type": "none",
    }


def _latent_fields(config: Config) -> dict[str, object]:
    """What is kept of a token is one key, and a part of it its value."""
    names = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
    rank, rope, key = (int(gguf_rope.number(config, name)) for name in names)
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": key + rope,
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": {"deepseek_v2": 1, "deepseek_v3": 2}.get(str(config["model_type"])),
    }


def _block_count(config: Config) -> dict[str, object]:
    """Layers that guess further tokens are counted, too."""
    drafts = int(gguf_rope.number(config, "num_nextn_predict_layers"))
    n = int(gguf_rope.number(config, "num_hidden_layers"))
    return {"block_count": n + drafts} if drafts else {}


_MORE: Mapping[str, Callable[[Config], Mapping[str, object]]] = {
    "lfm2": _of_lfm2,
    "lfm2moe": _of_lfm2,
    "gemma3n": gguf_gemma3n.fields,
    "gemma4": gguf_gemma4.fields,
    "hunyuan-moe": _of_hunyuan,
    "deepseek2": _latent_fields,
    "exaone-moe": _of_exaone_moe,
    "llama4": lambda config: {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    },
    "mamba2": gguf_scan.fields,
    "qwen3next": gguf_scan.fields,
    "kimi-linear": gguf_scan.kimi_fields,
    "qwen35": gguf_scan.fields,
    "qwen35moe": gguf_scan.fields,
    "granitehybrid": gguf_scan.fields,
    "falcon-h1": gguf_scan.fields,
    "nemotron_h": gguf_hybrid.nemotron_fields,
    "nemotron_h_moe": gguf_hybrid.nemotron_fields,
}
"""By architecture; None: not that field."""
