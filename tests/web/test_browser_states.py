"""When something is wrong: the page says what, and loses nothing."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.e2e.harness import Server, running_server
from tests.e2e.toy_model import write_toy_model
from tests.web.tab import NEEDS_BROWSER, Tab, until

pytestmark = NEEDS_BROWSER


def test_a_key_is_asked_for_and_stays_in_the_tab(
    browser: Any, tmp_path: Path, served: Server
) -> None:
    with running_server(write_toy_model(tmp_path / "toy"), api_key="secret") as server:
        tab = Tab(browser, server)
        tab.page.goto(f"{server.url}/ui/")
        tab.page.fill("dialog input", "secret")
        tab.page.click("text=Use it")
        tab.page.wait_for_selector(".top select option", state="attached")
        assert tab.page.evaluate("Object.values(localStorage).join()").find("secret") < 0
        assert tab.context.cookies() == []
        tab.end()


def test_a_server_that_is_gone_leaves_what_was_said(browser: Any, tmp_path: Path) -> None:
    with running_server(write_toy_model(tmp_path / "toy", {"seconds": 0.05})) as server:
        tab = Tab(browser, server)
        page = tab.open()
        page.fill("#composer", "a long answer, please")
        page.press("#composer", "Enter")
        said = page.locator(".message.live .body")
        until(lambda: len(said.text_content() or "") > 5)
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        page.wait_for_selector(".trouble:not([hidden])")
        page.wait_for_selector(".banner:not([hidden])")
        assert page.inner_text(".message.user .said") == "a long answer, please"
        assert len(page.inner_text(".message.assistant .body")) > 5
        page.wait_for_selector(".message.assistant >> text=Continue")
        tab.context.close()


def test_a_prompt_that_is_too_long_is_told_with_both_counts(tab: Tab) -> None:
    page = tab.open()
    page.fill("#composer", "many words " * 9000)
    page.press("#composer", "Enter")
    page.wait_for_selector(".trouble:not([hidden])")
    assert len(re.findall(r"\d{3,}", page.inner_text(".message.assistant .trouble"))) >= 2


def test_no_room_is_counted_down_and_asked_again(browser: Any, tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy", {"seconds": 0.05})
    with running_server(folder, max_requests=1) as server:
        body = {"model": server.model, "prompt": "x", "max_tokens": 120, "ignore_eos": True}
        with server.http.stream(
            "POST", f"{server.url}/v1/completions", json={**body, "stream": True}
        ):
            tab = Tab(browser, server)
            page = tab.open()
            page.click(".panel summary")
            page.get_by_label("Max tokens").fill("4")
            page.fill("#composer", "is there room?")
            page.press("#composer", "Enter")
            page.wait_for_selector(".wait >> text=Asking again in")
        page.wait_for_selector(".message.assistant:not(.live) .figures:not(:empty)")
        assert page.inner_text(".wait") == ""
        tab.context.close()


def test_an_engine_that_dies_is_said_and_the_answer_goes_on(browser: Any, tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy", {"seconds": 0.05, "start": 4})
    with running_server(folder) as server:
        tab = Tab(browser, server)
        page = tab.open()
        page.click(".panel summary")
        page.get_by_label("Max tokens").fill("60")
        page.fill("#composer", "go on whatever happens")
        page.press("#composer", "Enter")
        said = page.locator(".message.live .body")
        until(lambda: len(said.text_content() or "") > 5)
        os.kill(server.engine_pid(), signal.SIGKILL)
        page.wait_for_selector(".wait >> text=engine restarts")
        page.wait_for_selector(".message.assistant:not(.live)")
        assert page.inner_text(".message.assistant .trouble") == ""
        tab.end()


def test_a_newer_server_and_a_full_browser_are_said(tab: Tab) -> None:
    page = tab.open()
    page.route("**/ui/", lambda route: route.fulfill(headers={"etag": '"0123456789abcdef"'}))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector(".banner >> text=newer page")
    page.unroute("**/ui/")
    page.evaluate(
        "() => { IDBObjectStore.prototype.put = () => {"
        " throw new DOMException('', 'QuotaExceededError'); }; }"
    )
    page.fill("#composer", "is there space?")
    page.press("#composer", "Enter")
    page.wait_for_selector(".banner >> text=no space left")
    page.wait_for_selector(".message.assistant:not(.live)")
