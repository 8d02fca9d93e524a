"""LFM2: gated short convolutions, and attention in some layers; its files tell which each in a way
of its own."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

LFM2 = replace(
    LLAMA,
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    gguf="lfm2",
    block=BlockSpec(qk_norm="heads"),
    fields={
        **LLAMA.fields,
        "n_kv_heads": ModelField("num_key_value_heads", "attention.head_count_kv", 8, 0),
        "n_taps": ModelField("conv_L_cache", "shortconv.l_cache", 3),
        "mixers": ModelField("layer_types"),
        "attention_layers": ModelField("full_attn_idxs"),
        "ffn_size": ModelField("intermediate_size", "feed_forward_length", 12288),
        "other_ffn_size": ModelField("block_ff_dim", "", 0, 0),
        "ffn_adjusts": ModelField("block_auto_adjust_ff_dim", "", True, False),
        "ffn_factor": ModelField("block_ffn_dim_multiplier", "", 1.0, 1.0),
        "ffn_multiple": ModelField("block_multiple_of", "", 256, 1),
        "act": always("silu"),
        "qkv_bias": always(False),
        "o_bias": always(False),
        "mlp_bias": always(False),
        "norm_eps": ModelField("norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "theta": ModelField("rope_theta", "rope.freq_base", 1e6, 1e4),
        "tied": ModelField("tie_word_embeddings", "", True),
        "window": always(0),
    },
    tensors={
        "embed": TensorNames("model.embed_tokens", "token_embd"),
        "final_norm": TensorNames("model.embedding_norm", "token_embd_norm"),
        "lm_head": TensorNames("lm_head", "output"),
        "attn_norm": TensorNames("operator_norm", "attn_norm"),
        "q": TensorNames("self_attn.q_proj", "attn_q"),
        "k": TensorNames("self_attn.k_proj", "attn_k"),
        "v": TensorNames("self_attn.v_proj", "attn_v"),
        "o": TensorNames("self_attn.out_proj", "attn_output"),
        "q_norm": TensorNames("self_attn.q_layernorm", "attn_q_norm"),
        "k_norm": TensorNames("self_attn.k_layernorm", "attn_k_norm"),
        "conv_in": TensorNames("conv.in_proj", "shortconv.in_proj"),
        "conv": TensorNames("conv.conv", "shortconv.conv", "conv_taps", "taps"),
        "conv_out": TensorNames("conv.out_proj", "shortconv.out_proj"),
        "mlp_norm": TensorNames("ffn_norm", "ffn_norm"),
        "gate": TensorNames("feed_forward.w1", "ffn_gate"),
        "up": TensorNames("feed_forward.w3", "ffn_up"),
        "down": TensorNames("feed_forward.w2", "ffn_down"),
    },
    harmless={
        **LLAMA.harmless,
        "conv_bias": (False,),
        "tie_embedding": (True,),
        "block_use_swiglu": (True,),
        "use_pos_enc": (True,),
        **dict.fromkeys(("conv_dim", "conv_dim_out", "block_dim", "block_norm_eps", "num_heads")),
        **dict.fromkeys(("block_mlp_init_scale", "block_out_init_scale", "theta")),
        **dict.fromkeys(("block_use_xavier_init", "conv_use_xavier_init")),
    },
)
