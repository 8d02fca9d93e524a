"""What the commands of the library say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvasir.config.sizes import format_size
from kvasir.core.errors import ModelError
from kvasir.library.links import Outside, link, outside
from kvasir.library.shelf import Shelf
from kvasir.library.stored import StoredModel
from kvasir.weights.default import cached_default_model

HEAD = ("name", "size", "state", "from", "since")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def list_text() -> str:
    """A row for each model, and what else takes room."""
    shelf = Shelf()
    rows = [HEAD, *(_row(shelf, model) for model in shelf.models())]
    default = cached_default_model()
    if default is not None:
        size = format_size(default.stat().st_size)
        rows.append((default.stem, size, "whole", "the default model", ""))
    if len(rows) == 1:
        return "no models are here: kvasir pull ORG/REPO, or kvasir import\n"
    orphans = sum(path.lstat().st_size for path in shelf.orphans() if not path.is_symlink())
    note = f"{format_size(orphans)} belong to no model: kvasir prune\n" if orphans else ""
    return table(rows) + note


def _row(shelf: Shelf, model: StoredModel) -> tuple[str, ...]:
    since = time.strftime("%Y-%m-%d", time.localtime(model.created))
    return model.name, format_size(model.n_bytes), state(shelf, model), model.source, since


def state(shelf: Shelf, model: StoredModel) -> str:
    """whole; partial, with the share that is here; or gone: what a link leads to."""
    if shelf.is_whole(model):
        return "whole"
    if any(place.is_symlink() for place in shelf.places(model)):
        return "gone"
    return f"partial, {shelf.n_held(model) / max(1, model.n_bytes):.0%}"


def list_json() -> str:
    shelf = Shelf()
    found = [
        {**msgspec.to_builtins(model), "path": str(shelf.path(model)), "state": state(shelf, model)}
        for model in shelf.models()
    ]
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def model_text(name: str) -> str:
    """Raises ModelError."""
    shelf = Shelf()
    model = shelf.known(name)
    said = model.defaults
    rows = [
        ("name", model.name),
        ("state", state(shelf, model)),
        ("path", str(shelf.path(model))),
        ("size", format_size(model.n_bytes)),
        ("from", " ".join(x for x in (model.source, model.revision) if x)),
        *((f"parameter {key}", str(value)) for key, value in said.parameters.items()),
        ("max_model_len", str(said.max_model_len or "")),
        ("system", said.system),
        *((f"message {role}", text) for role, text in said.messages),
        *((f"file {x.name}", f"{format_size(x.n_bytes)} {x.digest}") for x in model.files),
        ("license", model.license),
    ]
    shown = table([(key, value.replace("\n", "\n  ")) for key, value in rows if value])
    return shown + f"kvasir inspect model {model.name} shows what its file says\n"


def removed(name: str) -> str:
    """A line for each model that ``name`` means. Raises ModelError."""
    default = cached_default_model()
    if default is not None and name == default.stem:
        n_bytes = default.stat().st_size
        default.unlink()
        return f"{name} removed, {format_size(n_bytes)} freed\n"
    shelf = Shelf()
    lines = []
    for model in shelf.meant(name):
        lines.append(f"{model.name} removed, {format_size(shelf.remove(model.name))} freed\n")
    return "".join(lines)


def outside_text() -> str:
    found = outside()
    if not found:
        return "nothing is found in the hub's cache, Ollama's or LM Studio's folders\n"
    rows = [("program", "name", "path"), *((x.program, x.name, str(x.path)) for x in found)]
    return table(rows) + "kvasir import NAME links one of them, --all every one\n"


def linked(path: str, name: str | None) -> str:
    """Raises ModelError."""
    place, called, source = Path(path).expanduser(), name, ""
    if not place.exists():
        other = _outside_called(path)
        place, called, source = other.path, name or other.name, f"{other.program}: {other.path}"
    if called is None:
        called = place.name if place.is_dir() else place.stem
    made = link(Shelf(), place, called, source)
    return f"{made.name} is {place}\n"


def _outside_called(name: str) -> Outside:
    found = {x.name: x for x in outside()}
    if name in found:
        return found[name]
    raise ModelError(
        f"{name} is no file here, and no model of that name is found in the hub's cache, Ollama's "
        "or LM Studio's folders: kvasir import shows those that are",
        code="model_not_found",
    )


def linked_all() -> str:
    """Those whose names are taken stay as they are."""
    shelf, lines = Shelf(), []
    for each in outside():
        if shelf.find(each.name) is not None:
            lines.append(f"{each.name} is there already\n")
            continue
        try:
            made = link(shelf, each.path, each.name, f"{each.program}: {each.path}")
            lines.append(f"{made.name} is {each.path}\n")
        except ModelError as error:  # the others are none the worse for it
            lines.append(f"{each.name} is left out: {error.message}\n")
    return "".join(lines) or outside_text()


def running_text(said: dict[str, Any]) -> str:
    """Of Ollama's ``/api/ps``."""
    models = said.get("models") or []
    rows = [("name", "size", "format", "context")]
    for model in models:
        details = model.get("details") or {}
        level = f"{details.get('family', '')} {details.get('quantization_level', '')}".strip()
        size = format_size(int(model.get("size") or 0))
        rows.append((str(model.get("name")), size, level, str(model.get("context_length", ""))))
    return table(rows)
