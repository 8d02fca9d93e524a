"""SigLIP, the tower's encoder in several families: a layer norm with bias before each part, biases
everywhere, positions that are learned."""

from kvasir.models.family import ModelField, TensorNames
from kvasir.models.spec import BlockSpec

SIGLIP = BlockSpec(
    gated=False,
    norm="layer_bias",
    both_ways=True,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
)
SIGLIP_FIELDS = {
    "hidden_size": ModelField("hidden_size", default=768),
    "n_heads": ModelField("num_attention_heads", default=12),
    "n_layers": ModelField("num_hidden_layers", default=12),
    "ffn_size": ModelField("intermediate_size", default=3072),
    "patch": ModelField("patch_size", default=16),
    "image": ModelField("image_size", default=224),
    "norm_eps": ModelField("layer_norm_eps", default=1e-6),
    "act": ModelField("hidden_act", default="gelu_pytorch_tanh"),
}
SIGLIP_TENSORS = {
    "patch": TensorNames("embeddings.patch_embedding", ""),
    "positions": TensorNames("embeddings.position_embedding", ""),
    "norm": TensorNames("post_layernorm", ""),
    "attn_norm": TensorNames("layer_norm1", ""),
    "mlp_norm": TensorNames("layer_norm2", ""),
    "q": TensorNames("self_attn.q_proj", ""),
    "k": TensorNames("self_attn.k_proj", ""),
    "v": TensorNames("self_attn.v_proj", ""),
    "o": TensorNames("self_attn.out_proj", ""),
    "up": TensorNames("mlp.fc1", ""),
    "down": TensorNames("mlp.fc2", ""),
}
