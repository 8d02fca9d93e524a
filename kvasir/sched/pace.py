"""How much of a prompt a step takes on while streams wait for its end."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.sched.cost import CostModel, Load

MIN_CHUNK_TOKENS = 16
"""Every step may compute this many tokens of prompts however slow it is; after a long context as
many as cost the same, so that attention cannot stretch the step."""
MIN_SHARE = 0.5
"""Of what the decodes of a step take, its prompts may take as much, whatever the target: they
advance with a third of the machine, and streams keep two thirds of their speed."""


@dataclass(frozen=True, slots=True)
class Pace:
    costs: CostModel
    seconds: float
    """That a step with decodes should take at most."""

    def room(self, load: Load, decodes: Load, start: int, n_most: int) -> int:
        """Tokens, at most ``n_most``, that may follow ``start`` others in a step of ``load``, of
        which ``decodes`` were not chunks of prompts. At least one if there are no other chunks."""
        alone = self.costs.step_seconds(decodes)
        least = max(self.costs.chunk_seconds(MIN_CHUNK_TOKENS, 0), MIN_SHARE * alone)
        n_fitting = self.costs.fit(load, start, n_most, max(self.seconds, alone + least))
        return max(n_fitting, min(n_most, int(load == decodes)))
