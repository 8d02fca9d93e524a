"""Qwen3.5 as it is released: with the tower of Qwen3-VL, none of whose early rows are added, and
with M-RoPE in its attention. One with an MLP, one with experts."""

from msgspec.structs import replace

from kvasir.models.families.qwen3_5 import QWEN3_5
from kvasir.models.families.qwen3_5_moe import QWEN3_5_MOE
from kvasir.models.families.qwen3_vl import QWEN3_TOWER
from kvasir.models.family import Family
from kvasir.models.spec import RopeAxes


def _seeing(family: Family, name: str, architecture: str) -> Family:
    own = {x: family.tensors[x] for x in ("embed", "final_norm")}
    names = {
        x: each._replace(hf=each.hf.replace("model.", "model.language_model.", 1))
        for x, each in own.items()
    }
    return replace(
        family,
        name=name,
        architectures=(architecture,),
        gguf="",
        hf_layers="model.language_model.layers",
        text_key="text_config",
        tower=replace(QWEN3_TOWER, taps=()),
        rope_axes=RopeAxes((11, 11, 10), woven=True),
        tensors={**family.tensors, **names},
    )


QWEN3_5_VL = _seeing(QWEN3_5, "qwen3_5_vl", "Qwen3_5ForConditionalGeneration")
QWEN3_5_MOE_VL = _seeing(QWEN3_5_MOE, "qwen3_5_moe_vl", "Qwen3_5MoeForConditionalGeneration")
