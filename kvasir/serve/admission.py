"""Bounds of the queue: refused at once, with the time after which it is worth trying again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from kvasir.core.errors import CapacityError, RequestError
from kvasir.core.messages import EngineStats
from kvasir.serve.keys.key import UNLIMITED, KeyLimits
from kvasir.serve.streams import EventStream
from kvasir.serve.wanted import Size

RESERVE_SHARE = 8
"""Beyond each bound an eighth of it is kept for those who have no more than that eighth."""


def reserve(bound: int) -> int:
    return -(-bound // RESERVE_SHARE)


def most_for(n_own: int, bound: int) -> int:
    """How many there may be of all, for who has ``n_own`` of them, with those that are added."""
    return bound + (n_own <= reserve(bound)) * reserve(bound)


class AdmissionLimits(msgspec.Struct, frozen=True):
    """Of one request: more could never be served, however idle the server is."""

    n_choices: int
    """Over all its prompts: as many as run and wait at a time."""
    n_tokens: int
    """Of all its prompts, each counted once: as many as wait at a time, and always one context."""
    key: KeyLimits = UNLIMITED

    def check(self, n_prompts: int, n: int, n_tokens: int = 0) -> None:
        """Raises RequestError (400) for ``n`` choices of each prompt."""
        if n_prompts * n > self.n_choices:
            asked = f"{n_prompts} prompts with n = {n} are {n_prompts * n} choices"
            raise RequestError(
                f"{asked}, this server takes at most {self.n_choices}: send fewer prompts in one "
                "request or lower n, or raise --max-queued-requests",
                param="n" if n_prompts == 1 else "prompt",
            )
        if n_tokens > self.n_tokens:
            raise RequestError(
                f"the prompts hold {n_tokens} tokens, this server takes at most {self.n_tokens}: "
                "send fewer prompts in one request, or raise --max-queued-tokens",
                param="prompt",
            )
        self._check_key(n_prompts, n, n_tokens)

    def _check_key(self, n_prompts: int, n: int, n_tokens: int) -> None:
        most, most_tokens = self.key.n, self.key.prompt_tokens
        if most is not None and n_prompts * n > most:
            raise RequestError(
                f"{n_prompts} prompts with n = {n} are {n_prompts * n} choices, this key may ask "
                f"for {most}: lower n, or send fewer prompts",
                param="n" if n_prompts == 1 else "prompt",
                code="key_limit_exceeded",
            )
        if most_tokens is not None and n_tokens > most_tokens:
            raise RequestError(
                f"the prompts hold {n_tokens} tokens, this key may send {most_tokens}: "
                "shorten them",
                param="prompt",
                code="key_limit_exceeded",
            )


@dataclass(slots=True)
class Admission:
    """What was sent to the engine, beside what the engine says it has received."""

    max_requests: int
    """Choices that may wait."""
    max_tokens: int
    """Prompt tokens that may wait."""
    n_sent: int = 0
    tokens_sent: int = 0
    n_to_come: int = 0
    tokens_to_come: int = 0
    """Of searches that were taken, and send their beams once their prompts are computed."""

    def limits(self, n_slots: int, max_model_len: int) -> AdmissionLimits:
        """With ``n_slots`` choices that run at a time."""
        return AdmissionLimits(self.max_requests + n_slots, max(self.max_tokens, max_model_len))

    def is_few(self, n_choices: int, n_tokens: int) -> bool:
        """Whether the reserve is for who has so many, with those that are asked for."""
        return n_choices <= reserve(self.max_requests) and n_tokens <= reserve(self.max_tokens)

    def check(
        self,
        stats: EngineStats,
        n_slots: int,
        n_new: int,
        tokens_new: int,
        *,
        has_few: bool = False,
        excess: int = 0,
    ) -> None:
        """Raises CapacityError when the queue would grow beyond a bound, for who ``has_few`` beyond
        its reserve.

        Whatever starts without waiting is no part of the queue. What the ``limits`` allow is taken
        while nobody waits: it could never be served otherwise. By as many tokens as such requests
        have beyond the bound, ``excess``, they keep nobody out who has few.
        """
        n_queued, n_tokens = self.queued(stats, n_slots)
        n_tokens = max(0, n_tokens - excess)
        max_requests = self.max_requests + has_few * reserve(self.max_requests)
        max_tokens = self.max_tokens + has_few * reserve(self.max_tokens)
        over = n_queued + n_new - self._n_free(stats, n_slots) - max_requests
        if over > 0:
            raise _full(
                f"{n_queued} choices wait and {n_new} more are asked for, the queue holds "
                f"{max_requests}",
                "--max-queued-requests",
                wait_for(over, n_queued, stats),
            )
        if n_queued and n_tokens + tokens_new > max_tokens:
            over = -(-(n_tokens + tokens_new - max_tokens) * n_queued // max(n_tokens, 1))
            raise _full(
                f"{n_tokens} prompt tokens wait and {tokens_new} more are asked for, the queue "
                f"holds {max_tokens}",
                "--max-queued-tokens",
                wait_for(over, n_queued, stats),
            )

    def excess(self, streams: Mapping[EventStream, Size], waits: Callable[[int], bool]) -> int:
        """Prompt tokens, beyond what the queue holds, that wait of requests larger than it: those
        of choices that have no token yet, or are to come. ``waits``: whether the choice of an id
        has none."""
        found = 0
        for stream, size in streams.items():
            if size.n_queued_tokens + size.tokens_to_come > self.max_tokens:
                n_waiting = sum(map(waits, stream.open))
                n_tokens = size.n_queued_tokens * n_waiting // size.n_choices
                found += max(0, n_tokens + size.tokens_to_come - self.max_tokens)
        return found

    def queued(self, stats: EngineStats, n_slots: int) -> tuple[int, int]:
        """Choices and prompt tokens that wait, those included that the engine has not seen yet."""
        n_unseen = self._n_unseen(stats)
        tokens_unseen = self.tokens_sent - stats.tokens_received + self.tokens_to_come
        n_free = _n_free(stats, n_slots)
        if n_unseen <= n_free:
            return stats.n_waiting, stats.tokens_waiting
        return stats.n_waiting + n_unseen - n_free, stats.tokens_waiting + tokens_unseen

    def _n_free(self, stats: EngineStats, n_slots: int) -> int:
        """Slots for choices that come now."""
        return max(0, _n_free(stats, n_slots) - self._n_unseen(stats))

    def _n_unseen(self, stats: EngineStats) -> int:
        """Choices that the engine has not received, and will."""
        return self.n_sent - stats.n_received + self.n_to_come

    def sent(self, n: int, n_tokens: int) -> None:
        """So many choices were sent, with as many prompt tokens, each choice counted."""
        self.n_sent += n
        self.tokens_sent += n_tokens

    def expect(self, n: int, n_tokens: int) -> None:
        """So many choices are to come, with as many prompt tokens; below 0: they came, or will
        not."""
        self.n_to_come += n
        self.tokens_to_come += n_tokens


def _n_free(stats: EngineStats, n_slots: int) -> int:
    """Slots that are free and that nobody waits for."""
    return 0 if stats.n_waiting else max(0, n_slots - stats.n_running)


def wait_for(n_places: int, n_queued: int, stats: EngineStats) -> float:
    """Seconds until ``n_places`` of the ``n_queued`` choices have started."""
    share = max(0, min(n_places, n_queued) - 1) / max(n_queued - 1, 1)
    return stats.first_wait + share * (stats.last_wait - stats.first_wait)


def _full(what: str, option: str, seconds: float) -> CapacityError:
    error = CapacityError(
        f"{what}: try again in about {max(1, round(seconds))} s, or raise {option}",
        code="queue_full",
    )
    error.retry_after = seconds
    return error
