"""GLM-4 of 2025, dense: norms on both sides of attention and MLP."""

from msgspec.structs import replace

from kvasir.models.families.glm import GLM
from kvasir.models.families.qwen2 import QWEN2
from kvasir.models.family import TensorNames
from kvasir.models.spec import BlockSpec

GLM4 = replace(
    GLM,
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    gguf="glm4",
    block=BlockSpec(interleaved_rope=True, post_norms=True),
    tensors={
        **GLM.tensors,
        **{name: QWEN2.tensors[name] for name in ("q", "k", "v")},
        "attn_post_norm": TensorNames("post_self_attn_layernorm", "post_attention_norm"),
        "mlp_post_norm": TensorNames("post_mlp_layernorm", "post_ffw_norm"),
    },
)
