"""What distinguishes one tower from another, as frozen values."""

from __future__ import annotations

import msgspec

from kvasir.core.tiles import TileSpec
from kvasir.models.family import PooledTowerSpec, QwenTowerSpec, TowerSpec
from kvasir.models.spec import ModelConfig

MERGER_EPS = 1e-6
"""Of the norm in front of a merger, in a tower that says none."""


class ReadTower(msgspec.Struct, frozen=True, kw_only=True):
    bases: tuple[str, str]
    """Before names of tensors of encoder, and of connector or merger, in this file."""
    encoder: ModelConfig
    """A model without vocabulary, whose tokens are patches."""
    head_dim: int
    """Of the file; the encoder's heads may be padded."""
    out_size: int
    """Of the rows that stand in place of embeddings."""
    tile: TileSpec

    def has(self, tensor: str) -> bool:
        """Whether a tensor is of the tower."""
        return tensor.startswith(self.bases)


class TowerConfig(ReadTower, frozen=True, kw_only=True):
    """Of tiles of one size."""

    spec: TowerSpec
    trained: int
    """Positions of a side of the table."""
    newline: str = ""
    """The tensor of the row behind each line, if there is one."""

    def has(self, tensor: str) -> bool:
        """What pools all of an image is of none."""
        unused = tuple(self.bases[0] + begin for begin in self.spec.unused)
        is_own = tensor.startswith(self.bases) and not tensor.startswith(unused)
        return is_own or tensor == self.newline


class QwenTower(ReadTower, frozen=True, kw_only=True):
    """Of images of any size: also those of Pixtral and Mistral 3."""

    spec: QwenTowerSpec
    side: int = 0
    """Positions of a side of the table; 0: there is none."""
    taps: tuple[int, ...] = ()
    """Layers whose rows are merged, too, and added behind the first layers of the target."""
    window: int = 0
    """Tokens of a side of windows; 0: there are none."""
    full: tuple[int, ...] = ()
    """Layers that see the whole image, where the others see windows."""
    merger_eps: float = MERGER_EPS
    merger_bias: bool = True


class PooledTower(ReadTower, frozen=True, kw_only=True):
    """Of images of any shape, whose rows are means of neighbours."""

    spec: PooledTowerSpec
    axis: int
    """Positions of columns, and of lines."""
    standardizes: bool
    """Rows have a bias taken away and a factor of each column."""


AnyTower = TowerConfig | QwenTower | PooledTower
