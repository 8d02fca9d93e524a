"""Where a conversation is rendered: what keeps the event loop waiting leaves it."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir.serve.text import INLINE_BYTES, INLINE_SECONDS, Rendering, TextModel


class Template:
    """Takes as long as ``seconds`` says, and notes where it runs; below zero it fails after that
    time."""

    def __init__(self) -> None:
        self.inline: list[bool] = []

    def encode(self, messages: Any, *flags: object) -> list[int]:
        self.inline.append(threading.current_thread() is threading.main_thread())
        seconds, began = messages[0]["seconds"], time.thread_time()
        while time.thread_time() - began < abs(seconds):
            continue
        if seconds < 0:
            raise ValueError("refused")
        return [7]


def where(*seconds: float, content: str = "") -> list[bool]:
    """Whether each of these renderings was on the event loop."""
    template: Any = Template()
    nothing: Any = SimpleNamespace()
    text = TextModel(nothing, nothing, template, nothing)

    async def render() -> None:
        for each in seconds:
            try:
                await text.render([{"content": content, "seconds": each}], Rendering())
            except ValueError:
                assert each < 0

    asyncio.run(render())
    return template.inline


SLOW = 2 * INLINE_SECONDS


@pytest.mark.parametrize(
    ("seconds", "inline"),
    [
        ((0.0, 0.0, 0.0), [False, True, True]),
        ((SLOW, SLOW, 0.0, 0.0), [False, False, False, True]),  # caches may have been cold
        ((0.0, SLOW, 0.0, 0.0), [False, True, False, False]),
        ((0.0, -SLOW, 0.0), [False, True, False]),
        ((-SLOW, -SLOW), [False, False]),
    ],
)
def test_a_template_that_kept_the_loop_waiting_does_so_no_more(
    seconds: tuple[float, ...], inline: list[bool]
) -> None:
    assert where(*seconds) == inline


def test_long_conversations_are_rendered_elsewhere() -> None:
    assert where(0.0, 0.0, content="x" * INLINE_BYTES) == [False, False]
