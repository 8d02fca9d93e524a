"""Falcon 40B, 180B: attention and MLP each behind a norm of its own."""

from msgspec.structs import replace

from kvasir.models.families.falcon import FALCON
from kvasir.models.family import TensorNames

FALCON_TWO_NORMS = replace(
    FALCON,
    name="falcon_two_norms",
    told_from="falcon",
    block=replace(FALCON.block, one_norm=False),
    tensors={
        **FALCON.tensors,
        "attn_norm": TensorNames("ln_attn", "attn_norm_2"),
        "mlp_norm": TensorNames("ln_mlp", "attn_norm"),
    },
)
