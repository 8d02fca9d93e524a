"""docs/dialects.md says where each dialect is spoken, and what of it is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvasir.serve.dialects import llama_server, messages, ollama, responses, tgi
from kvasir.serve.dialects.table import COUNTS, GENERATES, RENDERS
from kvasir.serve.protocol.sampling import UNSUPPORTED_SAMPLING
from kvasir.serve.routes_peers import GET, HEALTH

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "dialects.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE + "\n", re.MULTILINE))
OWN: dict[str, tuple[str, set[str]]] = {
    "Responses": ("Refused by name", {*responses.UNSUPPORTED} - {*UNSUPPORTED_SAMPLING}),
    "Messages": ("Refused by name", {*messages.UNSUPPORTED} - {*UNSUPPORTED_SAMPLING}),
    "Ollama": ("Refused by name", {*ollama.UNSUPPORTED}),
    "llama-server": ("Refused by name", {*llama_server.UNSUPPORTED}),
    "Text Generation Inference": ("of the parameters", {*tgi.UNSUPPORTED}),
}
"""What is refused by name unless it asks for nothing, and the words before it."""


def listed(text: str, head: str) -> set[str]:
    found = re.search(rf"{head}: ((?:`\w+`,?\s*)+)", text)
    assert found is not None
    return set(re.findall(r"`(\w+)`", found[1]))


@pytest.mark.parametrize("section", OWN)
def test_what_is_refused_is_listed(section: str) -> None:
    head, own = OWN[section]
    assert listed(SECTIONS[section], head) == own


def test_options_that_are_refused_are_listed() -> None:
    assert listed(SECTIONS["Ollama"], "Of the options") == {*ollama.UNSUPPORTED_OPTIONS}


def test_every_path_is_on_a_page() -> None:
    """Those for vectors and scores have one of their own."""
    text = PAGE + (DOCS / "vectors.md").read_text("utf-8")
    named = {*re.findall(r"`(?:GET |POST )?(/[^`\s]*)`", text)}
    for path in (*GENERATES, *COUNTS, *RENDERS, *GET, *HEALTH):
        assert path in named or path.endswith("{model}/ready"), path
