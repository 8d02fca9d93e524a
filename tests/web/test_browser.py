"""What one does with the page, in a real browser and against a real server."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.web.markdown_texts import NODE
from tests.web.tab import HERE, NEEDS_BROWSER, PATIENCE, Tab, focused, reach

pytestmark = NEEDS_BROWSER
HOSTILE = HERE / "hostile_in_browser.js"
VECTORS = HERE / "vectors.mjs"


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
    program = (HERE / "long_conversation.js").read_text("utf-8")
    told = page.evaluate(program, [2000, 4000, 400])
    print({name: value if name == "long" else round(value, 1) for name, value in told.items()})
    assert told["opened"] < 2000
    assert told["p95"] < 40
    assert told["nodes"] < 20_000


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


def test_names_of_fields_are_those_of_the_server(tab: Tab) -> None:
    page = tab.open()
    page.click(".panel summary")
    field = page.get_by_label("Temperature")
    field.fill("101")
    assert re.search(r"0 to 100", page.inner_text(".is-wrong ~ small"))


def known_vectors() -> list[str]:
    program = (
        f"import({json.dumps(VECTORS.as_uri())}).then(x => console.log(JSON.stringify(x.VECTORS)))"
    )
    done = subprocess.run([str(NODE), "-e", program], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found
