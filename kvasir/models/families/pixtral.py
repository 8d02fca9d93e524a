"""Pixtral and Mistral 3: a Mistral or a Ministral 3 that sees images of any size, with a tower of
patches that turn by lines and columns; in Mistral 3 a matrix of its own merges neighbours."""

from msgspec.structs import replace

from kvasir.models.families.llama import MISTRAL
from kvasir.models.families.ministral3 import MINISTRAL3
from kvasir.models.family import Family, ModelField, PixtralTowerSpec
from kvasir.models.spec import BlockSpec

_LAYER = "transformer.layers.{}"

_PIXTRAL_TOWER = PixtralTowerSpec(
    encoders=("model.vision_tower.", "vision_tower."),
    connectors=("model.multi_modal_projector.", "multi_modal_projector."),
    names={
        "patch": "patch_conv",
        "first_norm": "ln_pre",
        "attn_norm": f"{_LAYER}.attention_norm",
        "mlp_norm": f"{_LAYER}.ffn_norm",
        **{x: f"{_LAYER}.attention.{x}_proj" for x in "qkvo"},
        **{x: f"{_LAYER}.feed_forward.{x}_proj" for x in ("gate", "up", "down")},
        "merger.up": "linear_1",
        "merger.down": "linear_2",
    },
    sizes={
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "intermediate_size": 4096,
        "patch_size": 16,
    },
    block=BlockSpec(act="gelu", both_ways=True),
    patch_bias=False,
    image=("image_token_index", "image_token_id"),
    fold=("", 1),
    merger_bias=True,
    above={
        "projector_hidden_act": ("gelu", "gelu"),
        "vision_feature_layer": (-1, -2),
        "vision_feature_select_strategy": ("full", "default"),
    },
)
_MISTRAL3_TOWER = replace(
    _PIXTRAL_TOWER,
    names={**_PIXTRAL_TOWER.names, "norm": "norm", "merger.join": "patch_merger.merging_layer"},
    fold=("spatial_merge_size", 2),
    merger_bias=False,
    above={"projector_hidden_act": ("gelu", "gelu"), "vision_feature_layer": (-1, -1)},
)


def _seeing(
    text: Family, kind: str, name: str, architecture: str, tower: PixtralTowerSpec, tied: bool
) -> Family:
    return replace(
        text,
        name=name,
        architectures=(f"{architecture}ForConditionalGeneration",),
        gguf="",
        text_key="text_config",
        tower=tower,
        fields={
            **text.fields,
            "n_heads": ModelField("num_attention_heads", default=32),
            "tied": text.fields["tied"]._replace(default=tied),
        },
        harmless={**text.harmless, "model_type": (kind,), "is_composition": None},
    )


PIXTRAL = _seeing(MISTRAL, "mistral", "pixtral", "Llava", _PIXTRAL_TOWER, False)
MISTRAL3 = _seeing(MISTRAL, "mistral", "mistral3", "Mistral3", _MISTRAL3_TOWER, True)
MISTRAL3_MINISTRAL = _seeing(
    MINISTRAL3, "ministral3", "mistral3_ministral3", "Mistral3", _MISTRAL3_TOWER, True
)
