"""The library's folder: ``names/`` has a file for each model, ``files/`` what they consist of.

A model is whole when all of its files are there: each got its name after its hash was checked, so
no look reads them. Nothing here asks a network.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import quote

import msgspec

from kvasir.config.env import read_env
from kvasir.core.errors import ModelError
from kvasir.library.names import hub_name, own_name
from kvasir.library.stored import StoredModel

SUFFIX = ".json"
PARTIAL = ".partial"
"""Ends the name of a file that is being fetched."""
JOURNAL = ".parts"
LOCK = ".lock"
_MAX_NOTE = 1 << 20


class Shelf:
    """Of one folder. Another process may change it at any moment: what is gone is not there."""

    def __init__(self, folder: Path | None = None) -> None:
        """Default: library in KVASIR_CACHE."""
        self.folder = folder or read_env().cache / "library"
        self._names = self.folder / "names"
        self.files = self.folder / "files"

    def models(self) -> list[StoredModel]:
        """All, partial ones too, by name. One that cannot be read is none."""
        found = (_read(path) for path in sorted(self._names.glob("*" + SUFFIX)))
        return [model for model in found if model is not None]

    def find(self, name: str) -> StoredModel | None:
        """The model called ``name``; a name of the hub without a tag is that of the newest whole
        one of its repository."""
        same = self._alike(name)
        whole = [model for model in same if self.is_whole(model)]
        return max(whole or same, key=lambda model: model.created, default=None)

    def called(self, name: str) -> StoredModel | None:
        """The model of exactly this name."""
        return _read(self._path(name))

    def _alike(self, name: str) -> list[StoredModel]:
        """The model of exactly this name, else all that a name of the hub leaves open."""
        said = name.strip().removesuffix(":latest")
        asked = hub_name(said)
        exact = self.called(str(asked or said))
        if exact is not None or asked is None:
            return [] if exact is None else [exact]
        return [x for x in self.models() if _matches(x, asked.repo, asked.tag, asked.revision)]

    def known(self, name: str) -> StoredModel:
        """As ``find``. Raises ModelError, with the nearest name."""
        found = self.find(name)
        if found is None:
            raise self._unknown(name)
        return found

    def meant(self, name: str) -> list[StoredModel]:
        """What is to be removed: the model of exactly this name, else all that a name of the hub
        leaves open, by name: every quantization of a repository. Raises ModelError."""
        found = self._alike(name)
        if not found:
            raise self._unknown(name)
        return found

    def _unknown(self, name: str) -> ModelError:
        # Imported now: each start of an engine reads this file, and few of them err.
        import difflib

        names = [model.name for model in self.models()]
        near = difflib.get_close_matches(name, names, 1, 0.5)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else "kvasir list shows those that there are, kvasir pull ORG/REPO fetches one"
        )
        return ModelError(f"no model is called {name[:200]}: {hint}", code="model_not_found")

    def path(self, model: StoredModel) -> Path:
        """What ``open_model`` opens."""
        return self.files / model.folder / model.main

    def places(self, model: StoredModel) -> Iterator[Path]:
        """Of its files."""
        return (self.files / model.folder / file.name for file in model.files)

    def is_whole(self, model: StoredModel) -> bool:
        return all(place.exists() for place in self.places(model))

    def n_held(self, model: StoredModel) -> int:
        """Bytes on disk, of files that are being fetched, too."""
        return sum(_n_held(each) for place in self.places(model) for each in _with_partial(place))

    def keep(self, model: StoredModel) -> None:
        """From now on it is called so, and nothing else is. Whole or not at all."""
        own_name(model.name)
        self._names.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(model), indent=1)
        with NamedTemporaryFile(dir=self._names, suffix=".unfinished", delete=False) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, self._path(model.name))

    def replace(self, model: StoredModel) -> None:
        """As ``keep``; then the files go that what was called so before had and no model has."""
        before = self.called(model.name)
        self.keep(model)
        if before is not None:
            self.release(before)  # last: until here nothing is lost that was there

    def copy(self, name: str, other: str) -> StoredModel:
        """``other`` is the same model. Raises ModelError where that name is taken."""
        model, called = self.known(name), own_name(other)
        if self.find(called) is not None:
            raise ModelError(
                f"{called} is there already: kvasir rm {called} first, or use another name",
                code="model_exists",
            )
        copied = msgspec.structs.replace(model, name=called)
        self.keep(copied)
        return copied

    def remove(self, name: str) -> int:
        """Forgets the model and removes the files that no other one has, and what was fetched of
        them; the bytes that this gave back. Linked files stay where they are."""
        model = self.known(name)
        self._path(model.name).unlink(missing_ok=True)
        return self.release(model)

    def release(self, model: StoredModel) -> int:
        """Removes those files of what is no model any more that no other one has."""
        kept = {place for other in self.models() for place in self.places(other)}
        freed = 0
        for place in self.places(model):
            if place not in kept:
                freed += sum(map(_unlink, _with_partial(place)))
        _prune_folders(self.files / model.folder, self.files)
        return freed

    def orphans(self) -> list[Path]:
        """Files that belong to no model of the library."""
        kept = {x for m in self.models() for place in self.places(m) for x in _with_partial(place)}
        found = [path for path in self.files.rglob("*") if path.is_symlink() or path.is_file()]
        return [path for path in found if path not in kept]

    def prune(self) -> int:
        """Removes them, and what was fetched of models that are not whole and that nobody fetches
        now; the bytes. A link takes no room, and what it leads to may come back, as a disk does."""
        left = [x for x in self.models() if not self._is_kept(x)]
        freed = sum(self.remove(x.name) for x in left)
        for path in self.orphans():
            freed += _unlink(path)
            _prune_folders(path.parent, self.files)
        return freed

    def _is_kept(self, model: StoredModel) -> bool:
        """Whether it is whole, linked, or fetched by a process now."""
        places = list(self.places(model))
        is_linked = any(place.is_symlink() for place in places)
        is_fetched = any(_is_locked(place.with_name(place.name + LOCK)) for place in places)
        return is_linked or is_fetched or self.is_whole(model)

    def _path(self, name: str) -> Path:
        return self._names / (quote(name, safe="", errors="surrogateescape") + SUFFIX)


def may_be_model(path: Path) -> bool:
    """Whether a model can lie there: any other folder hides no name that is spelled as it is."""
    names = ("config.json", "adapter_config.json")
    return any((path / x).exists() for x in names) if path.is_dir() else path.exists()


def stored_path(name: str) -> Path | None:
    """Where the model of the library called ``name`` lies, if there is one and it is whole."""
    shelf = Shelf()
    model = shelf.find(name)
    return shelf.path(model) if model is not None and shelf.is_whole(model) else None


def _matches(model: StoredModel, repo: str, tag: str, revision: str) -> bool:
    called = hub_name(model.name)
    if called is None or called.repo.lower() != repo.lower():
        return False
    is_tag = not tag or called.tag.lower() == tag.lower() or model.main == tag
    return is_tag and (not revision or revision in (called.revision, model.revision))


def _read(path: Path) -> StoredModel | None:
    try:
        with path.open("rb") as stream:
            return msgspec.json.decode(stream.read(_MAX_NOTE), type=StoredModel)
    except (OSError, msgspec.MsgspecError):
        return None


def _with_partial(place: Path) -> Iterable[Path]:
    return (place, *(place.with_name(place.name + end) for end in (PARTIAL, JOURNAL, LOCK)))


def _n_held(path: Path) -> int:
    """A sparse file holds what was written of it; a link nothing."""
    try:
        return path.lstat().st_blocks * 512 if not path.is_symlink() else 0
    except OSError:
        return 0


def _unlink(path: Path) -> int:
    freed = _n_held(path)
    path.unlink(missing_ok=True)
    return freed


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _prune_folders(folder: Path, top: Path) -> None:
    """Empty ones, upwards."""
    while folder != top and folder.is_relative_to(top):
        inner = sorted((x for x in folder.rglob("*") if x.is_dir()), reverse=True)
        for each in (*inner, folder):
            try:
                each.rmdir()
            except OSError:
                return
        folder = folder.parent
