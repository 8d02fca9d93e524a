"""Towers in files of their own, beside GGUF files, as llama.cpp's converter writes them: those of
other families under other names, by ``clip.projector_type``."""

from collections.abc import Mapping

from msgspec.structs import replace

from kvasir.models.families.gemma3_vision import GEMMA3_VISION
from kvasir.models.families.internvl import INTERNVL
from kvasir.models.families.pixtral import MISTRAL3, PIXTRAL
from kvasir.models.families.qwen2_5_vl import QWEN2_5_VL
from kvasir.models.families.qwen2_vl import QWEN2_VL
from kvasir.models.families.qwen3_vl import QWEN3_VL
from kvasir.models.families.smolvlm import SMOLVLM
from kvasir.models.family import (
    Family,
    PixtralTowerSpec,
    QwenTowerSpec,
    TensorNames,
    TowerSpec,
)

_LAYER = {
    "attn_norm": "ln1",
    "mlp_norm": "ln2",
    **{x: f"attn_{x}" for x in "qkv"},
    "o": "attn_out",
    "up": "ffn_up",
    "down": "ffn_down",
}
_ENCODER = {"patch": "patch_embd", "positions": "position_embd", **_LAYER}
_SIGLIP = {**_ENCODER, "norm": "post_ln"}
_INTERN = {
    **_ENCODER,
    "first": "class_embd.",
    **{"q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "attn_scale": "ls1", "mlp_scale": "ls2"},
}
_PIXTRAL = {
    "patch": "patch_embd",
    "first_norm": "pre_ln",
    **{name: f"blk.{{}}.{own}" for name, own in {**_LAYER, "gate": "ffn_gate"}.items()},
    "merger.up": "1",
    "merger.down": "2",
}


def _cut(family: Family, names: Mapping[str, str], connector: Mapping[str, TensorNames]) -> Family:
    """With tiles of one size."""
    spec = family.tower
    assert isinstance(spec, TowerSpec) and names.keys() == spec.tensors.keys()
    tensors = {name: TensorNames(own, "") for name, own in names.items()}
    prefixes = {"encoders": ("v.",), "connectors": ("mm.",)}
    tower = replace(spec, **prefixes, layers="blk", tensors=tensors, connector=connector)
    return replace(family, tower=tower)


def _uncut(family: Family, names: Mapping[str, str]) -> Family:
    spec = family.tower
    assert isinstance(spec, PixtralTowerSpec) and names.keys() == spec.names.keys()
    prefixes = {"encoders": ("v.",), "connectors": ("mm.",)}
    return replace(family, tower=replace(spec, **prefixes, names=names, permuted=True))


def _qwen(family: Family, **more: str) -> Family:
    """``more``: names of weights that are called otherwise."""
    spec = family.tower
    assert isinstance(spec, QwenTowerSpec)
    names = {
        "patch": "patch_embd",
        "positions": "position_embd",
        **{name: f"blk.{{}}.{own}" for name, own in {**_LAYER, "gate": "ffn_gate"}.items()},
        "norm": "post_ln",
        "merger.up": "0",
        "merger.down": "2",
        **{f"deep.{x}": f"deepstack.{{}}.{own}" for x, own in _DEEP.items()},
        **more,
    }
    named = {name: names[name] for name in spec.names}
    prefixes = {"encoders": ("v.",), "connectors": ("mm.",)}
    return replace(family, tower=replace(spec, **prefixes, names=named, of_gguf=True))


_DEEP = {"norm": "norm", "up": "fc1", "down": "fc2"}


MMPROJ: Mapping[str, Family] = {
    "idefics3": _cut(SMOLVLM, _SIGLIP, {"proj": TensorNames("model.fc", "")}),
    "gemma3": _cut(
        GEMMA3_VISION,
        _SIGLIP,
        {
            "soft_norm": TensorNames("soft_emb_norm", ""),
            "proj": TensorNames("input_projection", "", "transposed"),
        },
    ),
    "internvl": _cut(
        INTERNVL,
        _INTERN,
        {
            "row_norm": TensorNames("model.mlp.0", ""),
            "proj_in": TensorNames("model.mlp.1", ""),
            "proj": TensorNames("model.mlp.3", ""),
        },
    ),
    "qwen2vl_merger": _qwen(QWEN2_VL),
    "qwen2.5vl_merger": _qwen(QWEN2_5_VL),
    "qwen3vl_merger": _qwen(QWEN3_VL, **dict.fromkeys("qkv", "blk.{}.attn_qkv")),
    "pixtral": _uncut(PIXTRAL, _PIXTRAL),
    "mistral3": _uncut(MISTRAL3, {**_PIXTRAL, "norm": "input_norm", "merger.join": "patch_merger"}),
}
"""By types; files of Mistral 3 say "pixtral", too."""
