"""How the page looks, for eyes and for axe-core: light, dark, narrow, in other colours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Server
from tests.web.tab import HERE, NEEDS_BROWSER, SHOTS, Tab

pytestmark = NEEDS_BROWSER


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
    page.evaluate((HERE / "sample_answer.js").read_text("utf-8"))
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
    page.evaluate((HERE / "sample_answer.js").read_text("utf-8"))
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
    page.evaluate((HERE / "sample_answer.js").read_text("utf-8"))
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
