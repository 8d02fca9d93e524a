"""What a program gives to those behind it, beside its logits."""

from __future__ import annotations

from collections.abc import Callable

from kvasir.ir.builder import Builder, WeightMaker
from kvasir.models.spec import ModelConfig

After = Callable[[int, str], str]
"""Makes of the number and the rows of a layer what the next one reads."""


class Export:
    """Nothing: what there is without heads."""

    def weights(self, own: WeightMaker) -> WeightMaker:
        """``own``, and where the weights lie that it needs itself."""
        return own

    def tapping(self, after: After | None, tapped: dict[int, str]) -> After | None:
        """``after``, which also keeps the rows of some layers in ``tapped``, by their numbers."""
        return after

    def record(
        self, builder: Builder, config: ModelConfig, x: str, tapped: dict[int, str]
    ) -> tuple[str, ...]:
        """Values of the program that are more outputs; ``x``: the rows of the last layer."""
        return ()


NO_EXPORT = Export()
