"""What queues and policies remember of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Turn:
    since: float = 0.0
    """When it began to wait, seconds of the scheduler's clock."""
    n_bypassed: int = 0
    """Requests that started in its turn, because it did not fit or had less cached."""
    n_left_out: int = 0
    """Plans in a row that computed nothing of its prompt, though it had started."""
    n_waits: int = 0
    """Plans that it waited for a block that another computes."""
    n_charged: int = 0
    """Computed tokens that its tenant was charged for."""
    advance: float = 0.0
    """Seconds that its tenant has paid for beyond them."""

    def restart(self, now: float) -> None:
        """It waits again, and will be computed again."""
        self.since = now
        self.n_charged = self.n_left_out = 0
