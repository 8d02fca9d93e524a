"""DeepSeek V3 and R1, Kimi K2, Moonlight: latent attention; experts by sigmoid and a bias, in
groups, beside a shared one and after dense layers."""

from msgspec.structs import replace

from kvasir.models.families.glm4_moe import GLM4_MOE
from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_SIZES = ("vocab_size", "hidden_size", "n_layers", "n_heads", "ffn_size", "act", "max_positions")
_ROUTING = ("expert_score", "choice_bias", "n_shared")
_TOP = ("embed", "final_norm", "lm_head", "attn_norm", "o", "mlp_norm", "gate", "up", "down")
_EXPERTS = ("router", "experts.gate", "experts.up", "experts.down", "choice_bias")
_SHARED = ("shared.gate", "shared.up", "shared.down")

DEEPSEEK_V3 = replace(
    LLAMA,
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    gguf="deepseek2",
    block=BlockSpec(interleaved_rope=True),
    fields={
        **{name: LLAMA.fields[name] for name in (*_SIZES, "norm_eps", "theta", "tied")},
        **{name: GLM4_MOE.fields[name] for name in _ROUTING},
        "qkv_bias": always(False),
        "o_bias": always(False),
        "mlp_bias": always(False),
        "latent_size": ModelField("kv_lora_rank", "attention.kv_lora_rank", 512),
        "latent_eps": always(1e-6),
        "query_rank": ModelField("q_lora_rank", "attention.q_lora_rank", 1536, 0),
        "key_dim": ModelField("qk_nope_head_dim", "attention.key_length_mla", 128),
        "rope_dim": ModelField("qk_rope_head_dim", "rope.dimension_count", 64),
        "value_dim": ModelField("v_head_dim", "attention.value_length_mla", 128),
        "n_experts": ModelField("n_routed_experts", "expert_count", 256),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 8),
        "normalize": ModelField("norm_topk_prob", "expert_weights_norm", True, False),
        "n_groups": ModelField("n_group", "expert_group_count", 8, 1),
        "top_groups": ModelField("topk_group", "expert_group_used_count", 4, 1),
        "expert_scale": ModelField("routed_scaling_factor", "expert_weights_scale", 2.5, 1.0),
        "expert_size": ModelField("moe_intermediate_size", "expert_feed_forward_length", 2048),
        "first_sparse": ModelField("first_k_dense_replace", "leading_dense_block_count", 3, 0),
        "draft_layers": ModelField("num_nextn_predict_layers", "nextn_predict_layers", 1, 0),
    },
    tensors={
        **{name: LLAMA.tensors[name] for name in _TOP},
        **{name: GLM4_MOE.tensors[name] for name in (*_EXPERTS, *_SHARED)},
        "q_plain": TensorNames("self_attn.q_proj", "attn_q", "head_first", "head_first"),
        "q_turned": TensorNames("self_attn.q_proj", "attn_q", "head_last", "head_last"),
        "q_a": TensorNames("self_attn.q_a_proj", "attn_q_a"),
        "q_a_norm": TensorNames("self_attn.q_a_layernorm", "attn_q_a_norm"),
        "q_b_plain": TensorNames("self_attn.q_b_proj", "attn_q_b", "head_first", "head_first"),
        "q_b_turned": TensorNames("self_attn.q_b_proj", "attn_q_b", "head_last", "head_last"),
        "kv_a": TensorNames("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        "kv_a_norm": TensorNames("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
        "k_up": TensorNames("self_attn.kv_b_proj", "attn_k_b", "head_keys"),
        "v_up": TensorNames("self_attn.kv_b_proj", "attn_v_b", "head_values"),
    },
    harmless={
        **{k: x for k, x in LLAMA.harmless.items() if not k.startswith(("expert_", "leading_"))},
        "attention_bias": (False,),
        "rope_interleave": (True,),
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "moe_layer_freq": (1,),
        "num_key_value_heads": None,
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "head_dim": None,
        "qk_head_dim": None,
        "aux_loss_alpha": None,
        "seq_aux": None,
        "ep_size": None,
        "expert_gating_func": (2,),
    },
)
