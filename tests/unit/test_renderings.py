"""Where a conversation is rendered: what keeps the event loop waiting leaves it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir.serve.conversation import chat_prompt
from kvasir.serve.text import DISTRUST, INLINE_BYTES, INLINE_SECONDS, Rendering, TextModel
from kvasir.tokenizer.messages import ChatMessage, History, PastCall
from kvasir.toolcalls.detect import Detected

NOTHING: Mapping[str, object] = {"content": ""}


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


def where(*seconds: float, said: Mapping[str, object] = NOTHING) -> list[bool]:
    """Whether each of these renderings was on the event loop."""
    template: Any = Template()
    nothing: Any = SimpleNamespace()
    text = TextModel(nothing, nothing, template, nothing)

    async def render() -> None:
        for each in seconds:
            try:
                await text.render([{**said, "seconds": each}], Rendering())
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


def test_a_template_that_was_slow_once_is_not_kept_away_for_ever() -> None:
    inline = where(0.0, SLOW, *[0.0] * (DISTRUST + 1), SLOW, *[0.0] * (DISTRUST + 1))
    again = 2 + DISTRUST
    assert inline[again : again + 2] == [True, True]
    assert not any(inline[again + 2 :])  # the second time takes longer


LONG = "x" * INLINE_BYTES


@pytest.mark.parametrize(
    "said",
    [
        {"content": LONG},
        {"content": [{"type": "text", "text": LONG}]},
        {"content": "", "reasoning_content": LONG},
        {"content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [LONG]}}}]},
        {"content": "", "tool_calls": [{"function": {"arguments": {"a": [1] * INLINE_BYTES}}}]},
    ],
)
def test_long_conversations_are_rendered_elsewhere(said: Mapping[str, object]) -> None:
    assert where(0.0, 0.0, said=said) == [False, False]


def test_long_calls_are_written_and_measured_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def dumps(value: object, **how: bool) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return "{}"

    monkeypatch.setattr("kvasir.tokenizer.messages.json.dumps", dumps)
    template: Any = Template()
    nothing: Any = SimpleNamespace(vocab_size=0)
    text = TextModel(nothing, nothing, template, nothing)
    monkeypatch.setattr(template, "encode", lambda *_, **__: [7])
    text._calls = Detected(None, "by this test", History(as_text=True))
    talk = [ChatMessage("assistant", "", (PastCall("1", "f", {"a": LONG}),))]
    asyncio.run(chat_prompt(talk, text, 4096, Rendering(), tool_format="auto"))
    assert threads == [False, False]
