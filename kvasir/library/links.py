"""Models of other programs on this machine, under names of ours: links, so nothing is copied."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kvasir.core.errors import ModelError
from kvasir.formats.gguf import MAGIC
from kvasir.library.names import own_name
from kvasir.library.shelf import Shelf
from kvasir.library.stored import StoredFile, StoredModel

_MODEL_LAYER = "application/vnd.ollama.image.model"
_MAX_MANIFEST = 1 << 20
_UNSAFE = re.compile(r"[^\w.\-]+", re.ASCII)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


class Outside(msgspec.Struct, frozen=True):
    """A model that another program keeps."""

    name: str
    path: Path
    """A GGUF file, or a folder with config.json."""
    program: str


def hub_cache(variables: Mapping[str, str], home: Path) -> Path:
    """Where the hub's own tools keep what they fetched."""
    if said := variables.get("HF_HUB_CACHE"):
        return Path(said).expanduser()
    base = variables.get("XDG_CACHE_HOME")
    shared = Path(base) if base else home / ".cache"
    return Path(variables.get("HF_HOME") or shared / "huggingface").expanduser() / "hub"


def outside(variables: Mapping[str, str] | None = None, home: Path | None = None) -> list[Outside]:
    """All that is found where the hub's cache, Ollama and LM Studio keep theirs."""
    said = os.environ if variables is None else variables
    here = home or Path.home()
    ollama = Path(said.get("OLLAMA_MODELS") or here / ".ollama/models").expanduser()
    found = [
        *_of_hub(hub_cache(said, here)),
        *_of_ollama(ollama),
        *_of_lm_studio(here / ".lmstudio/models"),
        *_of_lm_studio(here / ".cache/lm-studio/models"),
    ]
    return sorted(found, key=lambda each: (each.program, each.name))


def link(shelf: Shelf, path: Path, name: str, source: str = "") -> StoredModel:
    """``path`` is the model called ``name`` from now on. Raises ModelError where it is no model or
    the name is taken."""
    called = own_name(name)
    if shelf.find(called) is not None:
        raise ModelError(
            f"{called} is there already: kvasir rm {called} first, or use another name",
            code="model_exists",
        )
    made = linked(shelf, path, called, source)
    shelf.keep(made)
    return made


def linked(shelf: Shelf, path: Path, called: str, source: str = "") -> StoredModel:
    """What ``link`` keeps, in a folder that no other name and no other file has: nothing that is
    called otherwise changes. Raises ModelError where ``path`` is no model."""
    path = path.expanduser().absolute()
    stem = _UNSAFE.sub("-", called)
    whose = hashlib.sha256(f"{called}\0{path.resolve()}".encode(errors="surrogateescape"))
    folder = f"linked/{stem}-{whose.hexdigest()[:12]}"
    if path.is_dir() and (path / "config.json").is_file():
        targets = {x.name: x for x in sorted(path.iterdir()) if x.is_file()}
        folder, main = f"{folder}/{stem}", ""
    elif path.is_file() and _is_gguf(path):
        main = f"{stem}.gguf"
        targets = {main: path}
    else:
        raise ModelError(
            f"{path} is no model: a GGUF file, or a folder with config.json, is needed",
            code="model_not_found",
        )
    files = tuple(StoredFile(x, target.stat().st_size) for x, target in targets.items())
    for file, target in targets.items():
        place = shelf.files / folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(target.resolve())
    return StoredModel(called, folder, files, main, source or str(path), created=int(time.time()))


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # a name with NUL
        return False


def _of_hub(cache: Path) -> Iterator[Outside]:
    for folder in sorted(cache.glob("models--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        for snapshot in sorted((folder / "snapshots").glob("*")):
            if (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors")):
                yield Outside(repo, snapshot, "hub")
            for file in sorted(snapshot.rglob("*.gguf")):
                if _is_gguf(file) and not _SHARD.search(file.stem):
                    yield Outside(f"{repo}:{file.stem}", file, "hub")


def _of_ollama(models: Path) -> Iterator[Outside]:
    manifests = models / "manifests"
    for path in sorted(x for x in manifests.rglob("*") if x.is_file()):
        blob = _model_blob(path, models / "blobs")
        parts = path.relative_to(manifests).parts[1:]
        if blob is not None and len(parts) > 1 and _is_gguf(blob):
            *space, name, tag = parts
            called = f"{name}:{tag}" if tag != "latest" else name
            owner = [x for x in space if x != "library"]
            yield Outside("/".join([*owner[:1], called]), blob, "ollama")


def _model_blob(manifest: Path, blobs: Path) -> Path | None:
    try:
        with manifest.open("rb") as stream:
            said = msgspec.json.decode(stream.read(_MAX_MANIFEST))
        layers = {layer["mediaType"]: str(layer["digest"]) for layer in said["layers"]}
        digest = layers[_MODEL_LAYER].replace(":", "-")
    except (OSError, msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return None
    return blobs / digest if Path(digest).name == digest else None


def _of_lm_studio(models: Path) -> Iterator[Outside]:
    for file in sorted(models.glob("*/*/*.gguf")):
        is_model = _is_gguf(file) and "mmproj" not in file.name and not _SHARD.search(file.stem)
        if is_model:
            repo = "/".join(file.relative_to(models).parts[:2])
            yield Outside(f"{repo}:{file.stem}", file, "lm-studio")
