"""jina-embeddings-v2-base-code: queries and keys are normed, attention is added and normed twice,
and the MLP's gate is behind what it gates (llama.cpp takes the halves the other way round)."""

from msgspec.structs import replace

from kvasir.models.families.jina_v2 import JINA_V2
from kvasir.models.family import TensorNames

JINA_V2_CODE = replace(
    JINA_V2,
    name="jina_v2_code",
    told_from="jina_v2",
    block=replace(JINA_V2.block, qk_norm="width", sums_twice=True),
    tensors={
        **JINA_V2.tensors,
        "q_norm": TensorNames("attention.self.layer_norm_q", "attn_q_norm"),
        "k_norm": TensorNames("attention.self.layer_norm_k", "attn_k_norm"),
        "attn_norm_again": TensorNames("layer_norm_1", "attn_norm_2"),
        "gate": TensorNames("mlp.up_gated_layer", "ffn_up", *2 * ("second_half",)),
        "up": TensorNames("mlp.up_gated_layer", "ffn_up", *2 * ("first_half",)),
        "down": TensorNames("mlp.down_layer", "ffn_down"),
        "mlp_norm": TensorNames("layer_norm_2", "layer_output_norm"),
    },
)
