"""Time in which a run went on."""

from __future__ import annotations

import time

TICK_SECONDS = 0.1
LOST_SECONDS = 2.0
"""Of a longer time between two looks everything was stopped, this process too: it does not
count."""


class RunClock:
    """Seconds of a run, without those in which the whole of it was stopped from outside."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.stopped = 0.0
        self._last = time.monotonic()

    def sleep(self, seconds: float) -> None:
        end = self.seconds + seconds
        while self.seconds < end:
            time.sleep(min(TICK_SECONDS, end - self.seconds))
            self.look()

    def look(self) -> None:
        now = time.monotonic()
        passed, self._last = now - self._last, now
        if passed > LOST_SECONDS:
            self.stopped += passed
        else:
            self.seconds += passed
