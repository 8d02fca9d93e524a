"""Hunyuan, dense: Llama with a norm of each query and key head after rope, and a theta that grows
by alpha."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import ModelField, TensorNames, always
from kvasir.models.spec import BlockSpec

HUNYUAN_DENSE = replace(
    LLAMA,
    name="hunyuan_v1_dense",
    architectures=("HunYuanDenseV1ForCausalLM",),
    gguf="hunyuan-dense",
    block=BlockSpec(qk_norm="turned"),
    fields={
        **LLAMA.fields,
        "mlp_bias": always(False),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "ntk_alpha": ModelField("alpha"),
        "window": always(0),
    },
    tensors={
        **{name: each._replace(gguf_step="") for name, each in LLAMA.tensors.items()},
        "q_norm": TensorNames("self_attn.query_layernorm", "attn_q_norm"),
        "k_norm": TensorNames("self_attn.key_layernorm", "attn_k_norm"),
    },
    harmless={
        **LLAMA.harmless,
        "use_qk_norm": (True,),
        "use_cla": (False,),
        "use_rotary_pos_emb": (True,),
        "norm_type": ("rms",),
        "mlp_bias": (False,),
        "num_experts": (0, 1),
        "add_classification_head": (False,),
        **dict.fromkeys(("eod_token_id", "attention_head_dim", "cla_share_factor")),
        **dict.fromkeys(("class_num", "dense_list", "pool_type")),
        "rope.scaling.factor": (1.0,),
    },
)
