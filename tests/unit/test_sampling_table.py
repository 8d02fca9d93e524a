"""A number that shapes a draw stands in one table, and else only where it is used."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from kvasir.core.params import DrawParams
from kvasir.serve.dialects.llama_server import LlamaRequest
from kvasir.serve.dialects.ollama import OllamaOptions
from kvasir.serve.dialects.tgi import TgiParameters
from kvasir.serve.protocol.drawing import Peer, names_at
from kvasir.validation.sampling import Field, fields_of

ROOT = Path(__file__).parents[2]
TABLE = "kvasir/core/params.py"
MAX_FILES = 4
"""The table, what it means, that native code reads it, how it is done or that it is told."""
WORDS = {"temperature", "top_k", "top_p"}
"""Of other things as well: experts, and parts of the sampler."""
NAMES = sorted(set(DrawParams.__struct_fields__) - WORDS)
REQUESTS: dict[Peer, type[msgspec.Struct]] = {
    "llama": LlamaRequest,
    "ollama": OllamaOptions,
    "tgi": TgiParameters,
}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    files = [x for folder in ("kvasir", "native") for x in (ROOT / folder).rglob("*")]
    kinds = (".py", ".h", ".cpp", ".inl")
    found = [x for x in files if x.suffix in kinds]
    return {x.relative_to(ROOT).as_posix(): x.read_text(encoding="utf-8") for x in found}


@pytest.mark.parametrize("name", NAMES)
def test_a_field_is_named_in_four_files(name: str, sources: dict[str, str]) -> None:
    word = re.compile(rf"\b{name}\b")
    found = [path for path, text in sources.items() if name in text and word.search(text)]
    assert TABLE in found
    assert len(found) <= MAX_FILES, found


@pytest.mark.parametrize("peer", REQUESTS)
def test_clients_of_others_count_on_their_names_and_defaults(peer: Peer) -> None:
    request = REQUESTS[peer]()
    fields = {field.name: field for field in fields_of(DrawParams)}
    for own, theirs in names_at(peer).items():
        value = getattr(request, theirs)
        assert (value, type(value)) == (fields[own].peers.default(peer), fields[own].kind)
    assert set(names_at(peer).values()) < set(request.__struct_encode_fields__)


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs/serve.md").read_text(encoding="utf-8")
    lines = "\n".join(map(shown, fields_of(DrawParams)))
    assert lines in page, lines


def shown(field: Field) -> str:
    peers = [field.peers.default(peer) for peer in REQUESTS]
    name = f"`{field.name}`"
    if field.peers.ggml_name:
        name += f" (`{field.peers.ggml_name}`)"
    numbers = [f"{field.default:g}", *("" if x is None else f"{x:g}" for x in peers)]
    return f"| {' | '.join((name, str(field.bounds), *numbers, field.help))} |"
