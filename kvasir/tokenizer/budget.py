"""What one render of a chat template may use: steps, characters and processor time."""

from __future__ import annotations

import time
from typing import NoReturn

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

MAX_STEPS = 1_000_000
"""Loop iterations, calls, filters, operators and outputs of one render."""
MAX_OUTPUT = 8 << 20
"""Characters written, those written into variables included."""
MAX_WORK = 128 << 20
"""Characters of all strings made on the way; an element of a list or dict counts as ``ELEMENT``."""
MAX_SECONDS = 2.0
"""Processor time of the rendering thread, so that a busy machine changes no answer."""
MAX_INT_BITS = 4096
ELEMENT = 64


def stop(reason: str) -> NoReturn:
    """End the render."""
    raise SecurityError(reason)


class Budget:
    """Counts down during one render; every method raises SecurityError at zero."""

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._output = MAX_OUTPUT
        self._work = MAX_WORK
        self._deadline = time.thread_time() + MAX_SECONDS

    def step(self, n: int = 1) -> None:
        before = self._steps
        self._steps -= n
        if self._steps < 0:
            stop(f"it takes more than {MAX_STEPS} steps")
        if (before ^ self._steps) >> 4 and time.thread_time() > self._deadline:
            stop(f"it takes more than {MAX_SECONDS} s of processor time")

    def charge(self, n_chars: int) -> None:
        """Account for a string or container before it is made."""
        self._work -= n_chars
        if self._work < 0:
            stop(f"it makes values of more than {MAX_WORK} characters")

    def emit(self, text: str) -> None:
        self.step()
        self._output -= len(text)
        if self._output < 0:
            stop(f"it writes more than {MAX_OUTPUT} characters")

    def check(self, value: object) -> int:
        """Charge for all text and elements of ``value``; its number of nodes times its depth.

        Shared parts count each time they are reached, as they do in text: a list that holds another
        twice, forty levels deep, is refused.
        """
        n_nodes, deepest = 0, 1
        stack = [(value, 1)]
        while stack:
            item, depth = stack.pop()
            n_nodes += 1
            deepest = max(deepest, depth)
            if isinstance(item, str):
                self.charge(len(item))
            elif isinstance(item, int):
                if item.bit_length() > MAX_INT_BITS:
                    stop(f"it makes a number of more than {MAX_INT_BITS} bits")
            elif isinstance(item, dict | list | tuple):
                self._open(item, depth + 1, stack)
            elif item is not None and not isinstance(item, float | Undefined):
                stop(f"it uses a {type(item).__name__} as a value")
        return n_nodes * deepest

    def _open(
        self,
        item: dict[object, object] | list[object] | tuple[object, ...],
        depth: int,
        stack: list[tuple[object, int]],
    ) -> None:
        parts = [*item.keys(), *item.values()] if isinstance(item, dict) else item
        self.step(len(parts))
        self.charge(ELEMENT * len(parts))
        stack.extend((part, depth) for part in parts)
