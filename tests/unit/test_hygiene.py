"""The repository speaks of the project only; packages come from wherever the user's pip looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("kvasir", "native", "tests", "scripts", "bench", "deploy", "docs", ".ci")
SUFFIXES = {
    ".py",
    ".pyi",
    ".cpp",
    ".h",
    ".inl",
    ".sh",
    ".md",
    ".toml",
    ".txt",
    ".json",
    ".jsonl",
    ".yaml",
    ".yml",
    "",
}
THIS = Path(__file__).name

RULES = {
    "a path of one machine": re.compile(r"""(?<![\w.~])/(root|home|work|Users|opt|mnt)/[\w.-]"""),
    "a registry's host": re.compile(r"pypi\.org|pythonhosted|download\.pytorch|/simple/"),
    "an index in an install command": re.compile(r"pip3? install[^\n]*--(extra-)?index-url \S*:"),
    "a number of an issue": re.compile(r"\bissue #?\d", re.IGNORECASE),
}


def texts() -> Iterator[tuple[str, str]]:
    top = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    deep = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(top + deep):
        if path.suffix in SUFFIXES and "__pycache__" not in path.parts and path.name != THIS:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", RULES)
def test_nothing_in_the_tree_names(rule: str) -> None:
    found = [
        f"{name}:{at}: {line.strip()[:100]}"
        for name, text in texts()
        for at, line in enumerate(text.splitlines(), 1)
        if RULES[rule].search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        ("a path of one machine", "open('/home/ann/x.gguf')", "open('~/x.gguf')"),
        ("a registry's host", "https://pypi.org/x", "the registry"),
        ("an index in an install command", "pip install --index-url https://x y", "pip install y"),
        ("a number of an issue", "see issue 12", "the issue of memory"),
    ],
)
def test_the_rules_can_fail(rule: str, bad: str, good: str) -> None:
    assert RULES[rule].search(bad)
    assert not RULES[rule].search(good)


def test_each_word_of_the_glossary_means_one_thing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, glossary = text.partition("\n| word | means |\n")
    words = re.findall(r"^\| ([^|]+?) \|", glossary, re.MULTILINE)
    assert len(words) > 30 and len(words) == len(set(words))


def test_bindings_keep_to_the_stable_interface() -> None:
    """From Python 3.12 on they are compiled against it alone (wheel.py-api), where macros that look
    into objects are not."""
    macro = re.compile(r"\bPy[A-Z][a-z]\w*_[A-Z]{2}[A-Z_]*\(")
    found = {x.name: macro.findall(x.read_text()) for x in (ROOT / "native/bind").glob("*.*")}
    assert found and not {name: uses for name, uses in found.items() if uses}
