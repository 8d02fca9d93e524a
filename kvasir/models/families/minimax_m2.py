"""MiniMax M2: experts by sigmoid and a bias, norms of all heads of q and of k as one row, rope in a
part of each head."""

from msgspec.structs import replace

from kvasir.models.families.mixtral import MIXTRAL
from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

_EXPERTS = ("router", "experts.gate", "experts.up", "experts.down")
_ALIKE = ("attn_norm", "q", "k", "v", "o", "q_norm", "k_norm", "mlp_norm")
_BIAS = "block_sparse_moe.e_score_correction_bias."

MINIMAX_M2 = replace(
    MIXTRAL,
    name="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    gguf="minimax-m2",
    block=BlockSpec(qk_norm="width"),
    fields={
        **MIXTRAL.fields,
        "head_dim": ModelField("head_dim", "attention.key_length", 128, 0),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-6),
        "theta": ModelField("rope_theta", "rope.freq_base", 5e6, 1e4),
        "rotary_dim": ModelField("rotary_dim", "", 0, 0),
        "rotary_share": ModelField("partial_rotary_factor", "", 1.0, 1.0),
        "window": always(0),
        "n_experts": ModelField("num_local_experts", "expert_count", 256),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 8),
        "expert_score": always("sigmoid"),
        "choice_bias": always(True),
    },
    tensors={
        **{name: QWEN3.tensors[name] for name in ("embed", "final_norm", "lm_head", *_ALIKE)},
        **{name: MIXTRAL.tensors[name] for name in _EXPERTS},
        "choice_bias": TensorNames(_BIAS, "exp_probs_b.bias."),
    },
    harmless={
        **MIXTRAL.harmless,
        "use_qk_norm": (True,),
        "qk_norm_type": ("per_layer",),
        "use_routing_bias": (True,),
        "scoring_func": ("sigmoid",),
        "shared_intermediate_size": (0,),
        "attn_type_list": None,
        "use_mtp": None,
        "num_mtp_modules": None,
        "mtp_transformer_layers": None,
        "expert_feed_forward_length": None,
        "expert_gating_func": (2,),
    },
)
