"""The pages say what the results say, and results that say too much are refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.figures.__main__ import BLOCKS, LIMITS_PAGE, ROOT, faults, pages
from bench.figures.blocks import BLOCK, fill, loose
from bench.figures.limits import over_best, over_same_file
from bench.figures.picture import PICTURES
from bench.figures.readme import short
from bench.figures.results import Refused, load
from bench.figures.serving import overdue
from bench.figures.target import Target

CLEAN = {"machine": {"commit": "0123456789ab"}, "results": {"foreign": [0.0, 0.1]}}


def test_every_page_says_what_its_results_say() -> None:
    assert faults() == []


@pytest.mark.parametrize("page", ["README.md", "bench/results/limits.md"])
def test_an_edited_figure_is_noticed(page: str, tmp_path: Path) -> None:
    for path in (*pages(), *(ROOT / place for place in PICTURES)):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    assert faults(tmp_path) == []
    path = tmp_path / page
    text = path.read_text("utf-8")
    begin = text.index("<!-- figures: ")
    digit = next(i for i in range(text.index("\n", begin), len(text)) if text[i] in "1234567")
    path.write_text(text[:digit] + str(int(text[digit]) + 1) + text[digit + 1 :], "utf-8")
    assert faults(tmp_path) == [f"{page}: differs from bench/results: run python -m bench.figures"]


def test_a_picture_shows_its_result() -> None:
    """The length of a bar is the share of the longest in its row, ours on top."""
    engines = load("peers-smollm2-2cores")["engines"]
    (place, draw), *_ = PICTURES.items()
    drawn = ElementTree.fromstring(draw())
    texts = [x.text for x in drawn.iter() if x.tag.endswith("text")]
    assert f"{engines[0]['median']['batch']:,.0f}" in texts
    assert f"{1000 * 512 / engines[-1]['median']['prefill 512']:,.0f}" in texts
    bars = [int(x.get("width", 0)) for x in drawn.iter() if x.get("x") == "210"]
    rates = [engine["median"]["batch"] for engine in engines]
    assert bars[: len(rates)] == [round(330 * rate / max(rates)) for rate in rates]
    assert place == "docs/speed.svg"


def test_a_figure_outside_of_a_block_is_noticed(tmp_path: Path) -> None:
    block = "<!-- figures: a -->\n2.9x\n<!-- end of figures -->\n"
    assert loose(f"words\n{block}") == []
    for line in ("2.9x the best", "8 times sooner", "345 tok/s", "1,141 tokens a second"):
        assert loose(f"{line}\n{block}") == [line]
    assert loose("a 2x2 block, at most 8 times as long, 64 tokens") == []


def test_results_of_trees_with_changes_are_named_as_such() -> None:
    folder = ROOT / "bench/results"
    dirty = {
        path.stem
        for path in folder.rglob("*.json")
        if re.search(r'"commit": "\w+\+"', path.read_text())
    }
    (said,) = re.findall(
        r"and ([^.]*) from trees with changes:", (folder / "README.md").read_text()
    )
    assert set(re.findall(r"`(\w+)`", said)) == dirty
    (line,) = re.findall(r".*, from trees with changes\.", (folder / "limits.md").read_text())
    assert set(re.findall(r"\((\w+)\.md\)", line)) == dirty


def test_the_text_of_the_limits_has_no_measured_share() -> None:
    """Its notes say that no result is kept of theirs."""
    text, notes = (ROOT / LIMITS_PAGE).read_text().split("## What holds them")
    assert not re.search(r"\d ?%|\d [GM]B/s", BLOCK.sub("", text))
    assert "No result is kept of these figures" in " ".join(notes.split())


def test_a_block_is_written_and_nothing_else() -> None:
    page = "a\n<!-- figures: x -->\nold\n<!-- end of figures -->\nb\n"
    assert fill(page, {"x": lambda: "new\n"}) == page.replace("old", "new")
    with pytest.raises(KeyError, match="x"):
        fill(page, {})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"machine": {"commit": "0123456789ab+"}}, "from a clean tree"),
        ({"machine": {"commit": None}}, "from a clean tree"),
        ({"results": {"runs": [{"foreign": 0.11}]}}, "others took 11% of the machine"),
        ({"results": {"foreign": [0.0, 0.2]}}, "others took 20% of the machine"),
        ({"quick": True}, "a quick run"),
    ],
)
def test_a_result_that_says_too_much_is_refused(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(CLEAN))
    assert load("x", tmp_path) == CLEAN
    path.write_text(json.dumps({**CLEAN, **change}))
    with pytest.raises(Refused, match=why):
        load("x", tmp_path)
    with pytest.raises(Refused, match=r"y\.json: there is no such result"):
        load("y", tmp_path)


def test_targets_are_judged_by_the_figure_that_is_shown() -> None:
    engines = [
        {"name": "Kvasir, m.Q4_1.gguf", "median": {"decode": 300.0}},
        {"name": "llama.cpp, m.Q4_1.gguf", "median": {"decode": 100.0}},
        {"name": "llama.cpp, m.Q4_0.gguf", "median": {"decode": 150.0}},
    ]
    assert over_best("decode")({"engines": engines}) == 2.0
    assert over_same_file("decode")({"engines": engines}) == 3.0
    assert [short(engine["name"]) for engine in engines[1:]] == [
        "llama.cpp, Q4_1",
        "llama.cpp, Q4_0",
    ]


@pytest.mark.parametrize(
    ("bound", "is_most", "verdict"),
    [(8.0, False, "missed"), (7.96, False, "met"), (7.9, True, "missed"), (8.0, True, "met")],
)
def test_796_is_not_8(
    bound: float, is_most: bool, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.figures.target.load", lambda name, **_: {"ratio": 7.96})
    target = Target("x", "y", lambda document: document["ratio"], bound, is_most=is_most)
    assert target.row().endswith(f"| 7.96x | [y](y.json) | {verdict} |")


def test_what_is_counted_may_come_from_a_busy_machine(tmp_path: Path) -> None:
    document = {"machine": {"commit": "0123456789ab"}, "results": {"foreign": 0.9, "n": 3}}
    (tmp_path / "busy.json").write_text(json.dumps(document))
    with pytest.raises(Refused, match="others took 90% of the machine"):
        load("busy", tmp_path)
    assert load("busy", tmp_path, is_timed=False)["results"]["n"] == 3


def test_every_block_stands_on_a_page() -> None:
    text = "".join(path.read_text("utf-8") for path in pages())
    assert all(f"<!-- figures: {name} -->" in text for name in BLOCKS)


@pytest.mark.parametrize(("more", "seconds"), [({}, 0.25), ({"killed_after": 5.5}, 0.5)])
def test_a_hang_is_overdue_by_the_clock_where_there_is_one(
    more: dict[str, float], seconds: float
) -> None:
    hang = {"still": 5.25, "limit": 5.0, "pause": 20.0, **more}
    assert overdue({"results": {"hang": hang}}) == seconds
