"""Bounds of the queue: refused at once, with the time after which it is worth trying again."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.core.errors import CapacityError
from kvasir.core.messages import EngineStats


@dataclass(slots=True)
class Admission:
    """What was sent to the engine, beside what the engine says it has received."""

    max_requests: int
    """Choices that may wait."""
    max_tokens: int
    """Prompt tokens that may wait."""
    n_sent: int = 0
    tokens_sent: int = 0

    def check(self, stats: EngineStats, n_slots: int, n_new: int, tokens_new: int) -> None:
        """Raises CapacityError when the queue would grow beyond a bound.

        Whatever starts without waiting is no part of the queue, and a request of any size is
        taken while nobody waits: it could never be served otherwise.
        """
        n_queued, n_tokens = self.queued(stats, n_slots)
        if not n_queued:
            return
        over = n_queued + n_new - self.max_requests
        if over > 0:
            raise _full(
                f"{n_queued} choices wait and {n_new} more are asked for, the queue holds "
                f"{self.max_requests}",
                "--max-queued-requests",
                wait_for(over, n_queued, stats),
            )
        if n_tokens + tokens_new > self.max_tokens:
            over = -(-(n_tokens + tokens_new - self.max_tokens) * n_queued // max(n_tokens, 1))
            raise _full(
                f"{n_tokens} prompt tokens wait and {tokens_new} more are asked for, the queue "
                f"holds {self.max_tokens}",
                "--max-queued-tokens",
                wait_for(over, n_queued, stats),
            )

    def queued(self, stats: EngineStats, n_slots: int) -> tuple[int, int]:
        """Choices and prompt tokens that wait, those included that the engine has not seen yet."""
        n_unseen = self.n_sent - stats.n_received
        tokens_unseen = self.tokens_sent - stats.tokens_received
        n_free = 0 if stats.n_waiting else max(0, n_slots - stats.n_running)
        if n_unseen <= n_free:
            return stats.n_waiting, stats.tokens_waiting
        return stats.n_waiting + n_unseen - n_free, stats.tokens_waiting + tokens_unseen

    def sent(self, n: int, n_tokens: int) -> None:
        self.n_sent += n
        self.tokens_sent += n_tokens


def wait_for(n_places: int, n_queued: int, stats: EngineStats) -> float:
    """Seconds until ``n_places`` of the ``n_queued`` choices have started."""
    share = (min(n_places, n_queued) - 1) / max(n_queued - 1, 1)
    return stats.first_wait + share * (stats.last_wait - stats.first_wait)


def _full(what: str, option: str, seconds: float) -> CapacityError:
    error = CapacityError(
        f"{what}: try again in about {max(1, round(seconds))} s, or raise {option}",
        code="queue_full",
    )
    error.retry_after = seconds
    return error
