"""A model made of another one: the same files, other defaults."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvasir.core.errors import ModelError
from kvasir.library.links import linked
from kvasir.library.modelfile import Modelfile
from kvasir.library.names import HubName, hub_name, own_name
from kvasir.library.shelf import Shelf, may_be_model
from kvasir.library.stored import Defaults, StoredModel

Pull = Callable[[HubName], StoredModel]


def create(shelf: Shelf, name: str, said: Modelfile, folder: Path, pull: Pull) -> StoredModel:
    """The model called ``name``; one that was called so before is forgotten. ``folder``: of paths
    that ``said`` names; ``pull`` brings what is not here. Raises ModelError."""
    called = own_name(name)
    base = _base(shelf, said.base, folder, pull)
    if base is None:
        base = linked(shelf, folder / Path(said.base).expanduser(), called)
    made = msgspec.structs.replace(
        base,
        name=called,
        defaults=merged(base.defaults, said.defaults),
        license=said.license or base.license,
        created=int(time.time()),
    )
    shelf.replace(made)
    return made


def _base(shelf: Shelf, base: str, folder: Path, pull: Pull) -> StoredModel | None:
    """None: ``base`` is a path, and not that of a file of the library."""
    path = folder / Path(base).expanduser()
    if may_be_model(path):
        real = path.resolve()
        own = (x for x in shelf.models() if not shelf.path(x).is_symlink())
        same = next((x for x in own if shelf.path(x).resolve() == real), None)
        return same and msgspec.structs.replace(same, defaults=Defaults())
    found = shelf.find(base)
    if found is not None and shelf.is_whole(found):
        return found
    if path.exists():
        return None
    name = hub_name(base)
    if name is None:
        raise ModelError(
            f"FROM {base}: there is no such file and no such model (kvasir list)",
            code="model_not_found",
        )
    return pull(name)


def merged(base: Defaults, over: Defaults) -> Defaults:
    """``over`` wins."""
    return Defaults(
        {**base.parameters, **over.parameters},
        over.system or base.system,
        over.messages or base.messages,
        over.max_model_len or base.max_model_len,
    )
