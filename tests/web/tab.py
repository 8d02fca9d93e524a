"""A tab of a browser that is watched. ``KVASIR_CHROMIUM`` is the browser."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Server

CHROMIUM = os.environ.get("KVASIR_CHROMIUM", "")
NEEDS_BROWSER = pytest.mark.skipif(not CHROMIUM, reason="make test-page has a browser")
SHOTS = Path(os.environ.get("KVASIR_SHOTS", "build/page/shots"))
HERE = Path(__file__).parent
PATIENCE = 15_000
"""Milliseconds that anything may take on a busy machine."""


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE / 1000
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Tab:
    """A page that notes what it asked for and what went wrong."""

    def __init__(self, browser: Any, server: Server, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", self._told)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.url = server.url

    def _told(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong.append(message.text)

    def open(self, place: str = "#/") -> Any:
        self.page.goto(f"{self.url}/ui/{place}")
        self.page.wait_for_selector(".top select option", state="attached")
        return self.page

    def say(self, text: str, n_answers: int = 1) -> None:
        self.page.fill("#composer", text)
        self.page.press("#composer", "Enter")
        done = f".message.assistant:not(.live):nth-of-type({2 * n_answers})"
        self.page.wait_for_selector(done)

    def end(self) -> None:
        foreign = [url for url in self.asked if not url.startswith((self.url, "blob:"))]
        self.context.close()
        assert foreign == []
        assert self.wrong == []


def focused(page: Any) -> str:
    told: str = page.evaluate(
        "() => { const at = document.activeElement; return at.localName +"
        " (at.className ? '.' + at.className : '') + ':' + at.textContent; }"
    )
    return told


def reach(page: Any, what: str, most: int = 60) -> None:
    """By Tab alone."""
    tag, _, text = what.partition(":")
    for _ in range(most):
        page.keyboard.press("Tab")
        found = focused(page)
        if found.split(".")[0].split(":")[0] == tag and text in found:
            return
    raise AssertionError(f"{what} is not reached")
