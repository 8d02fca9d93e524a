"""Model families: what a checkpoint computes, as data and one builder."""

from kvasir.models.decoder import build_program
from kvasir.models.families import FAMILIES, config_from, is_ignorable
from kvasir.models.spec import BlockSpec, ModelConfig

__all__ = ["FAMILIES", "BlockSpec", "ModelConfig", "build_program", "config_from", "is_ignorable"]
