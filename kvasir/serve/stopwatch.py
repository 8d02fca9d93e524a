"""When the choices of one request were computed, told to the metrics as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvasir.core.request import Standing
from kvasir.serve.metrics import Finished, ModelMetrics

Json = dict[str, object]


@dataclass(slots=True)
class _Times:
    """Of one choice."""

    started: float
    first: float
    last: float
    n_tokens: int


class Stopwatch:
    """Times are seconds of the machine's monotonic clock, as those of the engine are."""

    __slots__ = (
        "_arrived",
        "_choices",
        "_done",
        "_gaps",
        "_metrics",
        "_n_prompt",
        "_standing",
        "_started",
    )

    def __init__(
        self,
        metrics: ModelMetrics,
        standing: Standing,
        n_prompt: Callable[[int], int],
        arrived: float,
        started: Callable[[int], float | None],
    ) -> None:
        """``n_prompt``: prompt tokens of a choice; ``started``: when the engine started it."""
        self._metrics = metrics
        self._standing = standing
        self._gaps = metrics.gaps(standing.priority_class)
        self._n_prompt = n_prompt
        self._arrived = arrived
        self._started = started
        self._choices: dict[int, _Times] = {}
        self._done: list[_Times] = []

    def tokens(self, index: int, n: int, n_cached: int = 0) -> None:
        """``n`` tokens of a choice have come; ``n_cached`` of its prompt were not computed."""
        now = time.monotonic()
        times = self._choices.get(index)
        if times is None:
            started = self._started(index) or self._arrived
            self._choices[index] = _Times(started, now, now, n)
            self._metrics.first_token(self._standing, now - self._arrived, n_cached)
            return
        self._gaps.observe(now - times.last)
        times.last = now
        times.n_tokens += n

    def finished(self, index: int, reason: str) -> None:
        """A choice has ended, with all its tokens or without any."""
        now = time.monotonic()
        times = self._choices.pop(index, None) or _Times(now, now, now, 0)
        self._done.append(times)
        self._metrics.finished(
            self._standing,
            Finished(
                reason,
                self._n_prompt(index),
                times.n_tokens,
                queued=max(0.0, times.started - self._arrived),
                prefill=times.first - times.started,
                decode=times.last - times.first,
            ),
        )

    def totals(self) -> Json:
        """The same and tokens, for logs; also of choices that were cut short."""
        choices = [*self._done, *self._choices.values()]
        sizes: Json = {"choices": len(choices), "output_tokens": sum(x.n_tokens for x in choices)}
        return {**sizes, **report(self._arrived, choices)}

    def report(self) -> Json:
        """Of the request, once all its choices have ended: of the first to start, the last to end
        and all tokens. vLLM's names where it has them, and its meaning of them."""
        return report(self._arrived, self._done)


def report(arrived: float, choices: Sequence[_Times]) -> Json:
    n_tokens = sum(x.n_tokens for x in choices)
    started = min((x.started for x in choices), default=arrived)
    first = min((x.first for x in choices), default=started)
    last = max((x.last for x in choices), default=first)
    n_gaps = n_tokens - len(choices)
    between = sum(x.last - x.first for x in choices)
    return {
        "queue_time_ms": _ms(started - arrived),
        "prefill_time_ms": _ms(first - started),
        "time_to_first_token_ms": _ms(first - started),
        "generation_time_ms": _ms(last - first),
        "e2e_time_ms": _ms(last - arrived),
        "mean_itl_ms": _ms(between / n_gaps) if n_gaps > 0 else None,
        "tokens_per_second": round(n_tokens / (last - started), 3) if last > started else None,
    }


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 3)
