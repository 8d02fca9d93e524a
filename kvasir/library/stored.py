"""What the library knows of a model: one small file each."""

from __future__ import annotations

from typing import Any

import msgspec


class StoredFile(msgspec.Struct, frozen=True):
    name: str
    """Below the model's folder, with / between folders."""
    n_bytes: int
    digest: str = ""
    """``sha256:`` or ``git:`` (SHA-1 of the blob) and hex digits; empty: of a link."""


class Defaults(msgspec.Struct, frozen=True):
    """What a Modelfile says of a model, for ``run`` and ``chat``."""

    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of ``SamplingParams``."""
    system: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    """(role, text) that every conversation begins with."""
    max_model_len: int | None = None

    def __bool__(self) -> bool:
        return self != Defaults()


class StoredModel(msgspec.Struct, frozen=True):
    name: str
    folder: str
    """Of its files, below the library's."""
    files: tuple[StoredFile, ...]
    main: str = ""
    """The GGUF file among them; empty: the folder is the model."""
    source: str = ""
    """Where it is from: ``hf.co/ORG/REPO``, or a path."""
    revision: str = ""
    """Commit of the hub's repository."""
    asked: str = ""
    """Revision that was asked for, which may move on; empty: the main one."""
    created: int = 0
    """Unix time, seconds."""
    license: str = ""
    defaults: Defaults = msgspec.field(default_factory=Defaults)

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)
