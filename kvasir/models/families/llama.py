"""Llama 2 and 3, SmolLM, TinyLlama; and Mistral, which slides unless its config says null."""

from msgspec.structs import replace

from kvasir.models.family import Family, ModelField, TensorNames, always

LLAMA = Family(
    "llama",
    ("LlamaForCausalLM",),
    "llama",
    fields={
        "vocab_size": ModelField("vocab_size", "vocab_size"),
        "hidden_size": ModelField("hidden_size", "embedding_length"),
        "n_layers": ModelField("num_hidden_layers", "block_count"),
        "n_heads": ModelField("num_attention_heads", "attention.head_count"),
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 0, 0),
        "head_dim": ModelField("head_dim", "attention.key_length", 0, 0),
        "ffn_size": ModelField("intermediate_size", "feed_forward_length"),
        "act": ModelField("hidden_act", "", "silu", "silu"),
        "qkv_bias": ModelField("attention_bias", "", False),
        "o_bias": ModelField("attention_bias", "", False),
        "mlp_bias": ModelField("mlp_bias", "", False),
        "max_positions": ModelField("max_position_embeddings", "context_length"),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6),
        "theta": ModelField("rope_theta", "rope.freq_base", 1e4, 1e4),
        "window": ModelField("", "attention.sliding_window", 0, 0),
        "tied": ModelField("tie_word_embeddings", "", False),
    },
    tensors={
        "embed": TensorNames("model.embed_tokens", "token_embd"),
        "final_norm": TensorNames("model.norm", "output_norm"),
        "lm_head": TensorNames("lm_head", "output"),
        "attn_norm": TensorNames("input_layernorm", "attn_norm"),
        "q": TensorNames("self_attn.q_proj", "attn_q", gguf_step="permute_rope"),
        "k": TensorNames("self_attn.k_proj", "attn_k", gguf_step="permute_rope"),
        "v": TensorNames("self_attn.v_proj", "attn_v"),
        "o": TensorNames("self_attn.o_proj", "attn_output"),
        "mlp_norm": TensorNames("post_attention_layernorm", "ffn_norm"),
        "gate": TensorNames("mlp.gate_proj", "ffn_gate"),
        "up": TensorNames("mlp.up_proj", "ffn_up"),
        "down": TensorNames("mlp.down_proj", "ffn_down"),
    },
    harmless={
        "sliding_window": (),
        "rope_interleaved": (False,),
        "use_bidirectional_attention": (False,),
        "attention.sliding_window": (0,),
        "attention.causal": (True,),
        "attention.scale": (1.0,),
        "embedding_scale": (1.0,),
        "residual_scale": (1.0,),
        "logit_scale": (1.0,),
        "rope.scale_linear": (1.0,),
        "expert_count": (0,),
        "expert_used_count": (0,),
        "expert_shared_count": (0,),
        "expert_group_count": (0,),
        "leading_dense_block_count": (0,),
    },
)

MISTRAL = replace(
    LLAMA,
    name="mistral",
    architectures=("MistralForCausalLM",),
    gguf="",
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8, 0),
        "qkv_bias": always(False),
        "o_bias": always(False),
        "mlp_bias": always(False),
        "window": ModelField("sliding_window", "attention.sliding_window", 4096, 0),
    },
)
