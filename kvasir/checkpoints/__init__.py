"""What files say of a model: from their fields and tensors to what is computed."""

from kvasir.checkpoints.read import config_from
from kvasir.checkpoints.tensors import build_program, ignorable

__all__ = ["build_program", "config_from", "ignorable"]
