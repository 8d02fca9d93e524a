"""The page in a real browser, against a real server. ``KVASIR_CHROMIUM`` is the browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Server, running_server
from tests.e2e.toy_model import write_toy_model
from tests.web.markdown_texts import NODE

CHROMIUM = os.environ.get("KVASIR_CHROMIUM", "")
SHOTS = Path(os.environ.get("KVASIR_SHOTS", "build/page/shots"))
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="make test-page has a browser")
PATIENCE = 15_000
"""Milliseconds that anything may take on a busy machine."""
HOSTILE = Path(__file__).parent / "hostile_in_browser.js"
VECTORS = Path(__file__).parent / "vectors.mjs"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_toy_model(tmp_path_factory.mktemp("page"))
    with running_server(folder) as server:
        yield server


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


@pytest.fixture
def tab(browser: Any, served: Server) -> Iterator[Tab]:
    tab = Tab(browser, served)
    yield tab
    tab.end()


def test_a_conversation_outlives_the_tab_and_branches(tab: Tab) -> None:
    page = tab.open()
    page.click(".panel summary")
    page.get_by_label("Max tokens").fill("24")
    tab.say("hello there")
    assert page.locator(".message").count() == 2
    assert "tok" in page.inner_text(".message.assistant .figures")
    tab.say("and more", 2)
    page.reload()
    page.wait_for_selector(".message:nth-of-type(4)")
    page.click(".message.assistant:last-of-type >> text=Again")
    page.wait_for_selector("text=2/2")
    page.wait_for_selector(".message.assistant:not(.live):last-of-type >> text=Again")
    page.click("[aria-label='Version before']")
    page.wait_for_selector("text=1/2")
    page.click(".message.user:nth-of-type(3) >> text=Edit")
    page.fill("dialog textarea", "another question")
    page.click("dialog >> text=Send")
    page.wait_for_selector("text=another question")
    page.click(".message.assistant:nth-of-type(4):not(.live) >> text=Delete")
    page.click(".toast >> text=Undo")
    page.wait_for_selector(".message:nth-of-type(4)")
    page.fill("[type=search]", "another")
    page.wait_for_selector(".heads li")
    page.fill("[type=search]", "nothing has this")
    page.wait_for_selector(".heads li", state="detached")


def test_several_answers_at_once_are_versions(tab: Tab) -> None:
    page = tab.open()
    page.click(".panel summary")
    page.get_by_label("Max tokens").fill("6")
    page.get_by_label("Answers").fill("3")
    tab.say("three times")
    page.wait_for_selector("text=1/3")
    for n in ("2/3", "3/3"):
        page.click("[aria-label='Next version']")
        page.wait_for_selector(f"text={n}")
        assert page.inner_text(".message.assistant .body")


def test_tokens_are_seen_from_inside_and_branch(tab: Tab) -> None:
    page = tab.open()
    page.click(".panel summary")
    page.get_by_label("Max tokens").fill("12")
    page.get_by_label("Alternatives").fill("4")
    tab.say("look inside")
    page.get_by_role("button", name="Inside", exact=True).click()
    page.wait_for_selector(".token")
    first = page.locator(".token").nth(2)
    first.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".tops .top:nth-of-type(2)")
    page.keyboard.press("ArrowDown")
    page.locator(".tops .top").nth(1).click()
    page.wait_for_selector("text=2/2")


def test_prompt_why_dashboard_and_comparison(tab: Tab) -> None:
    page = tab.open()
    page.click(".panel summary")
    page.get_by_label("Max tokens").fill("8")
    tab.say("explain yourself")
    page.click(".message.assistant >> text=Prompt")
    page.wait_for_selector("dialog .token")
    page.keyboard.press("Escape")
    page.click(".message.assistant >> text=Why")
    page.wait_for_selector("dialog .waterfall")
    page.keyboard.press("Escape")
    page.click("a >> text=Dashboard")
    page.wait_for_selector(".tile")
    page.wait_for_selector("text=Blocks by request")
    page.click("a >> text=Compare")
    page.fill("k-compare textarea", "the same")
    page.click("text=Ask both")
    page.wait_for_selector(".verdict:not(:empty)")


def test_what_a_model_says_makes_no_foreign_node(tab: Tab) -> None:
    """Vectors are rendered in the page itself; none acts, asks or leads anywhere."""
    page = tab.open()
    vectors = known_vectors()
    version = page.locator("link[rel=stylesheet]").get_attribute("href").split("/")[0]
    n_asked = len(tab.asked)
    found = page.evaluate(HOSTILE.read_text("utf-8"), [version, vectors])
    assert found == {"n": len(vectors), "foreign": [], "acted": False}
    late = [url for url in tab.asked[n_asked:] if "/markdown/" not in url]
    assert late == []


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


def test_two_tabs_show_what_the_other_saved_and_files_bring_it_back(tab: Tab) -> None:
    page = tab.open()
    page.click(".panel summary")
    page.get_by_label("Max tokens").fill("4")
    other = tab.context.new_page()
    other.set_default_timeout(PATIENCE)
    other.goto(f"{tab.url}/ui/")
    tab.say("said in one tab")
    other.wait_for_selector(".heads >> text=said in one tab")
    with page.expect_download() as download:
        page.click("text=Export")
    path = download.value.path()
    told = json.loads(Path(path).read_text("utf-8"))
    assert told["format"] == "kvasir.conversations"
    page.click("[aria-label='Delete said in one tab']")
    other.wait_for_selector(".heads li", state="detached")
    with page.expect_file_chooser() as chooser:
        page.click("text=Import")
    chooser.value.set_files(path)
    page.click(".heads >> text=said in one tab")
    page.wait_for_selector(".message.assistant")


def test_a_long_conversation_stays_quick(tab: Tab) -> None:
    """Times are a browser's on a machine that does other things too: bounds are wide, figures are
    printed."""
    page = tab.open()
    program = (Path(__file__).parent / "long_conversation.js").read_text("utf-8")
    told = page.evaluate(program, [2000, 4000, 400])
    print({name: value if name == "long" else round(value, 1) for name, value in told.items()})
    assert told["opened"] < 2000
    assert told["p95"] < 40
    assert told["nodes"] < 20_000


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


def test_all_is_done_by_keyboard_alone(tab: Tab) -> None:
    page = tab.open()
    keys = page.keyboard
    keys.type("hello")
    keys.press("Enter")
    page.wait_for_selector(".message.assistant:not(.live)")
    page.evaluate("document.activeElement.blur()")
    keys.press("k")
    assert focused(page).startswith("article.message assistant")
    reach(page, "button:Again")
    keys.press("Enter")
    page.wait_for_selector("text=2/2")
    page.wait_for_selector(".message.assistant:not(.live)")
    page.evaluate("document.activeElement.blur()")
    keys.press("?")
    page.wait_for_selector("dialog .keys")
    assert focused(page).startswith("button")
    keys.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    keys.press("Alt+d")
    page.wait_for_selector(".tile")
    reach(page, "summary:Table")
    keys.press("Enter")
    page.wait_for_selector("details[open] table")
    keys.press("Alt+n")
    page.wait_for_selector(".welcome")
    assert focused(page).startswith("textarea")
    keys.press("Shift+Tab")
    keys.press("/")
    assert focused(page).startswith("input")
    page.keyboard.type("hello")
    reach(page, "a:hello")
    keys.press("Enter")
    page.wait_for_selector(".message.assistant")


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


def known_vectors() -> list[str]:
    program = (
        f"import({json.dumps(VECTORS.as_uri())}).then(x => console.log(JSON.stringify(x.VECTORS)))"
    )
    done = subprocess.run([str(NODE), "-e", program], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


LEVELS = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


def violations(page: Any, source: str) -> list[str]:
    """What axe-core finds against WCAG 2.2 AA, as its rules and where."""
    page.evaluate(source)
    found = page.evaluate("options => axe.run(document, options)", {"runOnly": LEVELS})
    return [f"{x['id']}: {x['nodes'][0]['html'][:150]}" for x in found["violations"]]


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, served: Server, scheme: str, width: int) -> None:
    package = pytest.importorskip("axe_playwright_python")
    source = (Path(package.__file__).parent / "axe.min.js").read_text("utf-8")
    size = {"width": width, "height": 740}
    tab = Tab(browser, served, color_scheme=scheme, viewport=size, reduced_motion="reduce")
    page = tab.open()
    found = {"empty": violations(page, source)}
    page.click(".panel summary")
    page.get_by_label("Max tokens").fill("30")
    page.get_by_label("Alternatives").fill("3")
    found["settings"] = violations(page, source)
    tab.say("hello")
    page.click(".panel summary")
    page.evaluate((Path(__file__).parent / "sample_answer.js").read_text("utf-8"))
    found["chat"] = violations(page, source)
    for name, place in (("Prompt", ".token"), ("Why", ".waterfall")):
        page.get_by_role("button", name=name, exact=True).click()
        page.wait_for_selector(f"dialog {place}")
        found[name] = violations(page, source)
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Inside", exact=True).click()
    page.locator(".token").nth(1).focus()
    page.wait_for_selector(".top")
    found["inside"] = violations(page, source)
    page.locator("main").focus()
    page.keyboard.press("?")
    page.wait_for_selector("dialog .keys")
    found["keys"] = violations(page, source)
    page.keyboard.press("Escape")
    for place in ("dashboard", "compare"):
        page.goto(f"{served.url}/ui/#/{place}")
        page.wait_for_selector(f"k-{place} h1")
        page.wait_for_timeout(800)
        found[place] = violations(page, source)
    tab.end()
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize("look", ["forced", "rtl", "zoomed"])
def test_other_looks(browser: Any, served: Server, look: str) -> None:
    """Colours of the system, right to left, and twice as large."""
    size = {"width": 640, "height": 400} if look == "zoomed" else {"width": 1000, "height": 700}
    scale = 2 if look == "zoomed" else 1
    colours = "active" if look == "forced" else "none"
    tab = Tab(browser, served, forced_colors=colours, viewport=size, device_scale_factor=scale)
    page = tab.open()
    if look == "rtl":
        page.evaluate("document.documentElement.dir = 'rtl'")
    page.click(".panel summary")
    page.get_by_label("Max tokens").fill("20")
    page.click(".panel summary")
    tab.say("\u0645\u0631\u062d\u0628\u0627" if look == "rtl" else "hello")
    page.evaluate((Path(__file__).parent / "sample_answer.js").read_text("utf-8"))
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SHOTS / f"{look}.png"))
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= size["width"]
    tab.end()


SIZES = {"wide": (1280, 800), "narrow": (360, 740)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_shots(browser: Any, served: Server, scheme: str, size: str) -> None:
    """For eyes; and nothing is wider than the window."""
    width, height = SIZES[size]
    tab = Tab(browser, served, color_scheme=scheme, viewport={"width": width, "height": height})
    page = tab.open()
    SHOTS.mkdir(parents=True, exist_ok=True)

    def shoot(name: str) -> None:
        page.screenshot(path=str(SHOTS / f"{name}-{scheme}-{size}.png"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name

    shoot("empty")
    if size == "narrow":
        page.click(".menu")
        shoot("menu")
        page.click(".menu")
    page.evaluate("document.querySelector('k-chat').panel.open = true")
    page.get_by_label("Max tokens").fill("60")
    shoot("settings")
    page.evaluate("document.querySelector('k-chat').panel.open = false")
    tab.say("hello there, how are you?")
    page.evaluate((Path(__file__).parent / "sample_answer.js").read_text("utf-8"))
    shoot("chat")
    page.click(".message.assistant >> text=Why")
    page.wait_for_selector(".waterfall")
    shoot("why")
    page.keyboard.press("Escape")
    page.goto(f"{served.url}/ui/#/dashboard")
    page.wait_for_selector(".tile")
    page.wait_for_timeout(1500)
    shoot("dashboard")
    page.goto(f"{served.url}/ui/#/compare")
    page.wait_for_selector("k-compare textarea")
    shoot("compare")
    tab.end()


def test_names_of_fields_are_those_of_the_server(tab: Tab) -> None:
    page = tab.open()
    page.click(".panel summary")
    field = page.get_by_label("Temperature")
    field.fill("101")
    assert re.search(r"0 to 100", page.inner_text(".is-wrong ~ small"))
