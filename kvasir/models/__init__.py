"""Model families: what a checkpoint computes, as data and one builder."""

from kvasir.models.decoder import build_program
from kvasir.models.read import config_from
from kvasir.models.spec import BlockSpec, LayerSpec, ModelConfig
from kvasir.models.tensors import ignorable

__all__ = [
    "BlockSpec",
    "LayerSpec",
    "ModelConfig",
    "build_program",
    "config_from",
    "ignorable",
]
