"""How much of a prompt a step takes on while streams wait for its end."""

from __future__ import annotations

import msgspec

from kvasir.timing.cost import CostModel, Load

MIN_CHUNK_TOKENS = 16
"""Every step may compute this many tokens of prompts however slow it is; after a long context as
many as cost the same, so that attention cannot stretch the step."""
MIN_SHARE = 0.5
"""Of what the decodes of a step take, its prompts may take as much, whatever the target: they
advance with a third of the machine, and streams keep two thirds of their speed."""
AUTO_SHARE = 0.7
"""The same without a target in seconds, for each prompt that is to be computed: one alone slows
streams to a little less than half of their speed, and what many wait for is not held up."""


class Pace(msgspec.Struct, frozen=True):
    costs: CostModel
    seconds: float
    """That a step with decodes should take at most."""
    share: float = 0.0
    """Of what its decodes take, that each prompt may add."""

    def room(
        self,
        load: Load,
        decodes: Load,
        start: int,
        n_most: int,
        n_prompts: int = 1,
        looked: float = 0.0,
    ) -> int:
        """Tokens, at most ``n_most``, that may follow ``start`` others in a step of ``load``, of
        which ``decodes`` were not chunks of prompts. At least one if there are no other chunks.
        ``n_prompts``: to be computed in all. ``looked``: seconds of the step beside its load."""
        most = self._most(decodes, n_prompts) - looked
        n_fitting = self.costs.fit(load, start, n_most, most)
        return max(n_fitting, min(n_most, int(load == decodes)))

    def left(self, load: Load, decodes: Load, n_prompts: int = 1) -> float:
        """Seconds that a step of ``load`` may take on beside it."""
        return self._most(decodes, n_prompts) - self.costs.step_seconds(load)

    def _most(self, decodes: Load, n_prompts: int) -> float:
        alone = self.costs.step_seconds(decodes)
        return max(self.seconds, alone + self._least(alone, n_prompts))

    def share_room(
        self, decodes: Load, spent: float, start: int, n_most: int, contexts: float = 0.0
    ) -> int:
        """The same for the prompts of one tenant together, beside streams of others: chunks that
        take ``spent`` seconds are in the step already. ``contexts``: seconds of the room that the
        tenant's streams have used, by which others wait for longer already. At least one token
        without any chunk."""
        left = self.share_left(decodes, spent, contexts)
        return max(self.costs.longest(start, n_most, left), min(n_most, int(not spent)))

    def share_left(self, decodes: Load, spent: float, contexts: float = 0.0) -> float:
        """Seconds that are left of these."""
        return self._least(self.costs.step_seconds(decodes) - contexts, 1, contexts) - spent

    def context_room(self, n_rows: int) -> float:
        """Seconds that contexts of one tenant's rows may add to a step of ``n_rows`` of one token,
        beside streams of others: those that have none slow down as beside prompts."""
        return MIN_SHARE * self.costs.step_seconds(Load(n_rows, n_rows))

    def _least(self, alone: float, n_prompts: int, used: float = 0.0) -> float:
        """Seconds that prompts may take whatever the target: decodes take ``alone``, and have
        ``used`` some of it."""
        share = max(MIN_SHARE, self.share * n_prompts)
        return max(self.costs.chunk_seconds(MIN_CHUNK_TOKENS, 0), share * alone - used)


def make_tenant_pace(costs: CostModel, target: float | None) -> Pace | None:
    """Of each tenant's prompts beside streams of others. None: ``target`` bounds every step in
    seconds."""
    return None if target else Pace(costs, 0.0, AUTO_SHARE)


def make_pace(costs: CostModel, target: float | None) -> Pace | None:
    """``target``: of ``SchedulerConfig.itl_target``. None: prompts use all that decodes leave."""
    if target is None:
        return None
    return Pace(costs, target, 0.0 if target else AUTO_SHARE)


def make_paces(costs: CostModel, target: float | None) -> tuple[Pace | None, Pace | None]:
    """Of all prompts, and of each tenant's."""
    return make_pace(costs, target), make_tenant_pace(costs, target)
