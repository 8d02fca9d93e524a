"""Files that the pages name are there."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
)
FILE = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|h|cpp|inl|md))`")
DECIDES = ("core", "kv", "sched", "sampling", "engine", "exec/base.py")
COMPUTES = ("ir", "models")
HOMES = ("", "kvasir/", "native/", "docs/", "tests/")


def missing(text: str) -> list[str]:
    named = set(FILE.findall(text))
    return sorted(x for x in named if not any((ROOT / home / x).exists() for home in HOMES))


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_name_are_there(page: str) -> None:
    assert missing((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_file_that_is_not_there_is_found() -> None:
    assert missing("`core/plan.py`, `core/nowhere.py` and `core/nowhere`") == ["core/nowhere.py"]


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\(([a-z-]+\.md)\)", index)
    assert len(named) == len(set(named))
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}
    # the page of the package is what registries show: the beginning of README.md
    assert pages - set(named) == {"package.md"} and set(named) <= pages


def test_the_way_of_a_chat_request_is_twelve_files() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = text.partition("| | file | does |")[2].partition("\n\n")[0]
    files = re.findall(r"`([a-z0-9_/]+\.py)`", rows)
    assert len(files) == 12
    assert all((ROOT / "kvasir" / file).exists() for file in files)


def n_lines(path: Path) -> int:
    files = [path] if path.suffix else path.rglob("*.py")
    return sum(x.read_bytes().count(b"\n") for x in files if "families" not in x.parts)


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "bench/results/limits.md"])
def test_the_spine_has_the_lines_that_pages_tell(page: str) -> None:
    """To a hundred: who adds to it says so."""
    text = (ROOT / page).read_text(encoding="utf-8")
    parts = {x: n_lines(ROOT / "kvasir" / x) for x in (*DECIDES, *COMPUTES)}
    wanted = {name: parts[name] for name in parts if f"`{name}` (" in text}
    told = {name: number(text, rf"`{name}` \(([\d,]+)\)") for name in wanted}
    for name, names in (("steps", DECIDES), ("models", COMPUTES), ("all", (*parts,))):
        wanted[name] = sum(parts[x] for x in names)
    told["all"] = number(text, r"has ([\d,]+)(?: lines, counted)?,? by `wc -l`")
    told["steps"], told["models"] = (
        number(text, rf"([\d,]+) {words}")
        for words in (r"(?:in `core`|decide)", r"(?:in `ir`|say)")
    )
    assert {x: told[x] for x in wanted if abs(told[x] - wanted[x]) > 100} == {}, wanted


def number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return int(found[1].replace(",", ""))


@pytest.fixture(scope="module")
def sources() -> str:
    kinds = {".py", ".h", ".cpp", ".inl"}
    files = (x for folder in ("kvasir", "native", "tests") for x in (ROOT / folder).rglob("*"))
    texts = [x.read_text(encoding="utf-8") for x in files if x.suffix in kinds]
    return " ".join(" ".join((*texts, (ROOT / "CMakeLists.txt").read_text("utf-8"))).split())


@pytest.mark.parametrize("page", sorted(x for x in PAGES if x.startswith("docs/add-a")))
def test_diffs_begin_with_what_is_there(page: str, sources: str) -> None:
    """Lines of other files than the one that is added."""
    diffs = re.findall(r"```diff\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for diff in diffs for line in dedent(diff).splitlines() if line[:1] in "- "]
    known = [" ".join(line[1:].split()) for line in lines if "…" not in line]
    assert [line for line in known if line not in sources] == []
