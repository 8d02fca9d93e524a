"""A model that was named instead of pointed at: the library's, or the hub's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvasir.config.options import EngineOptions
from kvasir.library.names import hub_name
from kvasir.library.shelf import Shelf, may_be_model
from kvasir.library.stored import Defaults


def present(options: EngineOptions, *, pulls: bool = True) -> tuple[EngineOptions, Defaults]:
    """``options`` with a path for a model that was named, and what was said of it when it was made.
    A name of the hub that is not here yet is pulled, unless somebody waits who must not wait
    (``pulls``). Raises ModelError."""
    asked = options.model
    if asked is None or may_be_model(place := Path(asked).expanduser()):
        return options, Defaults()
    shelf = Shelf()
    model, name = shelf.find(asked), hub_name(asked)
    is_missing = not place.exists() if model is None else not shelf.is_whole(model)
    if pulls and name is not None and is_missing:
        # Imported now: a start that pulls nothing needs neither HTTP nor bars of progress.
        from kvasir.cli.pulling import pulled

        model = pulled(name)
    if model is None:
        return options, Defaults()  # who opens it says what is missing
    path = shelf.path(model)
    own = path.name if path.is_dir() else path.stem
    names = options.served_model_name or ",".join(dict.fromkeys((asked, own)))
    length = options.max_model_len or model.defaults.max_model_len
    found = replace(options, model=str(path), served_model_name=names, max_model_len=length)
    return found, model.defaults
