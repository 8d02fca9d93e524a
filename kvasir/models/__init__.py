"""What models compute: families as data, what distinguishes layers, and one builder."""

from kvasir.models.decoder import record_program
from kvasir.models.spec import BlockSpec, LayerSpec, ModelConfig

__all__ = ["BlockSpec", "LayerSpec", "ModelConfig", "record_program"]
