"""OLMoE: Llama with experts whose weights stay as they are, and norms of all heads of q and of k
as one row."""

from msgspec.structs import replace

from kvasir.models.families.llama import LLAMA
from kvasir.models.families.qwen3_moe import QWEN3_MOE
from kvasir.models.family import ModelField, always
from kvasir.models.spec import BlockSpec

OLMOE = replace(
    LLAMA,
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    gguf="olmoe",
    block=BlockSpec(qk_norm="width"),
    fields={
        **LLAMA.fields,
        "mlp_bias": always(False),
        "window": always(0),
        "norm_eps": ModelField("rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-5),
        "n_experts": ModelField("num_experts", "expert_count", 64),
        "top_k": ModelField("num_experts_per_tok", "expert_used_count", 8),
        "normalize": ModelField("norm_topk_prob", "", False, False),
    },
    tensors=QWEN3_MOE.tensors,
    harmless={**LLAMA.harmless, "clip_qkv": ()},
)
