"""What people call a model: a path, ``ORG/REPO[:TAG][@REVISION]`` of a hub, or a name of their
own."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from kvasir.core.errors import ModelError

HOSTS = ("hf.co/", "huggingface.co/")
"""What may stand before a name of the hub; the address itself says HF_ENDPOINT."""
_WORD = r"[\w][\w.\-]*"
_HUB = re.compile(rf"({_WORD}/{_WORD})(?::([\w.\-/]+))?(?:@([\w.\-/]+))?", re.ASCII)
_PAGE = re.compile(
    rf"({_WORD}/{_WORD})/(?:blob|resolve|tree)/([\w.\-]+)(?:/([\w.\-/]+))?(?:\?.*)?", re.ASCII
)
"""Of a file or a revision, as a browser shows its address."""
MAIN = "main"
LATEST = "latest"
"""Ollama's tag for where none is said."""
_OWN = re.compile(rf"{_WORD}(?::{_WORD})?", re.ASCII)
MAX_NAME = 200


class HubName(msgspec.Struct, frozen=True):
    """``tag``: a quantization, or the name of a file; ``revision``: a branch, a tag or a commit.
    Empty where none is said."""

    repo: str
    tag: str = ""
    revision: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repo}{tag}" + (f"@{self.revision}" if self.revision else "")


def hub_name(text: str) -> HubName | None:
    """None for what can be no name of the hub: a path, or a name without an organization."""
    said = text.strip().removeprefix("https://")
    host = next((host for host in HOSTS if said.startswith(host)), "")
    said = said.removeprefix(host)
    page = _PAGE.fullmatch(said) if host else None
    if page is not None and ".." not in said:
        return HubName(page[1], page[3] or "", "" if page[2] == MAIN else page[2])
    found = _HUB.fullmatch(said)
    if found is None or len(said) > MAX_NAME or ".." in said or said.endswith((".gguf/", "/")):
        return None
    if not host and not found[2] and Path(said).suffix in (".gguf", ".safetensors"):
        return None  # a file in a folder
    tag = "" if found[2] == LATEST else found[2]
    return HubName(found[1], tag or "", found[3] or "")


def own_name(text: str) -> str:
    """``text``, if a model of the library may be called so. Raises ModelError."""
    said = text.strip().removesuffix(f":{LATEST}")
    if hub_name(said) is None and (_OWN.fullmatch(said) is None or len(said) > MAX_NAME):
        raise ModelError(
            f"{text[:MAX_NAME]!r} is no name of a model: use letters, digits and . _ - (my-model), "
            "or ORG/REPO:TAG of the hub",
            code="invalid_model_name",
        )
    return str(hub_name(said) or said)
