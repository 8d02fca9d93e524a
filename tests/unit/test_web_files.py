"""The page's files: few bytes, nothing inline, nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvasir.web.files import FOLDER, VERSION_DIGITS, read_page

FIRST_LOAD = 80_000
"""Bytes of all files together, packed: those that are loaded later included."""
MODULES = sorted(FOLDER.rglob("*.js"))
IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*['\"]([\w./-]+)['\"]""")
MAX_LINES = 400
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser"
    r"|createContextualFragment|setAttributeNS|srcdoc|document\.cookie|XMLHttpRequest|importScripts"
)


def test_all_files_together_are_small() -> None:
    page = read_page()
    assert sum(len(x.packed) for x in (page.home, *page.files.values())) < FIRST_LOAD


def test_the_version_follows_from_every_file(tmp_path: Path) -> None:
    for name in ("index.html", "a.js"):
        (tmp_path / name).write_text("{{version}}")
    (tmp_path / "notes.txt").write_text("not served")
    page = read_page(tmp_path)
    assert len(page.version) == VERSION_DIGITS
    assert page.home.body == page.version.encode()
    assert page.files.keys() == {"a.js"}
    (tmp_path / "a.js").write_text("other")
    assert read_page(tmp_path).version != page.version


def test_the_index_has_nothing_inline_and_names_files_that_are_there() -> None:
    page = read_page()
    text = page.home.body.decode()
    assert not re.search(r"<style|\son\w+=|style=|javascript:|<script(?![^>]*\ssrc=)", text)
    named = re.findall(r'(?:src|href)="([^"#]+)"', text)
    assert named
    for name in named:
        assert name.removeprefix(f"{page.version}/") in page.files
        assert name.startswith(page.version)


@pytest.mark.parametrize("module", MODULES, ids=lambda x: x.name)
def test_a_module_imports_its_own_and_makes_no_markup(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    for name in IMPORT.findall(text):
        assert name.startswith("."), name
        assert (module.parent / name).exists(), name
    assert not SINKS.search(text)
    assert len(text.splitlines()) <= MAX_LINES
    makes = re.findall(r"createElement\w*", text)
    assert not makes or module.name in ("dom.js", "app.js")


def test_styles_ask_for_nothing() -> None:
    for style in FOLDER.rglob("*.css"):
        assert not re.search(r"url\(|@import|@font-face", style.read_text(encoding="utf-8"))
