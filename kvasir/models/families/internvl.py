"""InternVL 2.5 and 3: a Qwen 2 or 3 that sees. A tower of InternViT, whose parts have factors and
whose first row is of no patch; tiles by the image's shape, rows of patches side by side."""

from msgspec.structs import replace

from kvasir.models.families.qwen2 import QWEN2
from kvasir.models.families.qwen3 import QWEN3
from kvasir.models.family import Family, ModelField, TensorNames, TowerSpec
from kvasir.models.spec import BlockSpec

_TOWER = TowerSpec(
    encoders=("model.vision_tower.", "vision_tower."),
    connectors=("model.multi_modal_projector.", "multi_modal_projector."),
    layers="encoder.layer",
    cuts="shape",
    block=BlockSpec(
        gated=False,
        both_ways=True,
        o_bias=True,
        mlp_bias=True,
        part_scales=True,
    ),
    fields={
        "hidden_size": ModelField("hidden_size", default=1024),
        "n_heads": ModelField("num_attention_heads", default=16),
        "n_layers": ModelField("num_hidden_layers", default=24),
        "ffn_size": ModelField("intermediate_size", default=4096),
        "qkv_bias": ModelField("attention_bias", default=False),
        "norm_kind": ModelField("norm_type", default="layer_norm"),
        "qk_norm": ModelField("use_qk_norm", default=False),
        "patch": ModelField("patch_size", default=14),
        "image": ModelField("image_size", default=448),
        "norm_eps": ModelField("layer_norm_eps", default=1e-6),
        "act": ModelField("hidden_act", default="gelu"),
    },
    above={
        "vision_feature_layer": (-1,),
        "vision_feature_select_strategy": ("default",),
        "projector_hidden_act": ("gelu",),
    },
    harmless={
        "use_mean_pooling": (True,),
        "use_absolute_position_embeddings": (True,),
    },
    tensors={
        "patch": TensorNames("embeddings.patch_embeddings.projection", ""),
        "first": TensorNames("embeddings.cls_token.", ""),
        "positions": TensorNames("embeddings.position_embeddings.", ""),
        "attn_norm": TensorNames("layernorm_before", ""),
        "mlp_norm": TensorNames("layernorm_after", ""),
        "q": TensorNames("attention.q_proj", ""),
        "k": TensorNames("attention.k_proj", ""),
        "v": TensorNames("attention.v_proj", ""),
        "q_norm": TensorNames("attention.q_norm", ""),
        "k_norm": TensorNames("attention.k_norm", ""),
        "o": TensorNames("attention.projection_layer", ""),
        "attn_scale": TensorNames("lambda_1.", ""),
        "up": TensorNames("mlp.fc1", ""),
        "down": TensorNames("mlp.fc2", ""),
        "mlp_scale": TensorNames("lambda_2.", ""),
    },
    connector={
        "row_norm": TensorNames("layer_norm", ""),
        "proj_in": TensorNames("linear_1", ""),
        "proj": TensorNames("linear_2", ""),
    },
    image=ModelField("image_token_id", default=151667),
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
)


def _seeing(text: Family, kind: str) -> Family:
    return replace(
        text,
        name=f"internvl_{kind}",
        architectures=("InternVLForConditionalGeneration",),
        gguf="",
        text_key="text_config",
        tower=_TOWER,
        fields={**text.fields, "tied": text.fields["tied"]._replace(default=True)},
        harmless={**text.harmless, "model_type": (kind,)},
    )


INTERNVL = _seeing(QWEN2, "qwen2")
INTERNVL_QWEN3 = _seeing(QWEN3, "qwen3")
