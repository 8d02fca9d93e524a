"""The folder of models, and what lies in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kvasir.config.sizes import format_size
from kvasir.doctor.finding import Finding, Scene
from kvasir.library.shelf import Shelf

LITTLE_DISK = 1 << 30
UNFINISHED = ".unfinished"
"""Ends the name of a packed file that is being written. Its home, ``exec.cpu.packed``, brings the
kernels, which may be what is broken."""
OLD_SECONDS = 3600
"""After which nobody writes a packed file any more."""


def owner(scene: Scene) -> Iterator[Finding]:
    folder = next(each for each in (scene.cache, *scene.cache.parents) if each.exists())
    if not scene.may_write(folder):
        yield Finding(
            "blocks",
            f"{folder} cannot be written",
            f"access(2), as user {os.geteuid()}; it is user {folder.stat().st_uid}'s",
            "no model can be fetched, and each start packs the weights again",
            f"sudo chown -R $USER {folder}, or KVASIR_CACHE=another folder",
        )


def space(scene: Scene) -> Iterator[Finding]:
    free = scene.disk(scene.cache).free
    if free < LITTLE_DISK:
        yield Finding(
            "costs",
            f"{format_size(free)} are free at {scene.cache}",
            "statvfs",
            "models have no room, and packed weights are not kept",
            "kvasir prune, kvasir rm NAME, or KVASIR_CACHE on another disk",
        )


def partials(scene: Scene) -> Iterator[Finding]:
    shelf = Shelf(scene.cache / "library")
    for model in shelf.models():
        if shelf.is_whole(model):
            continue
        if any(place.is_symlink() for place in shelf.places(model)):
            yield Finding(
                "blocks",
                f"what {model.name} links to is gone",
                f"{model.source} does not exist",
                "it does not load",
                f"kvasir rm {model.name}, then kvasir import it from where it is now",
            )
        else:
            yield Finding(
                "costs",
                f"{model.name} was fetched in part",
                f"files are missing below {shelf.files / model.folder}",
                f"{format_size(shelf.n_held(model))} of disk",
                f"kvasir pull {model.name} goes on, kvasir rm {model.name} removes it",
            )


def orphans(scene: Scene) -> Iterator[Finding]:
    shelf = Shelf(scene.cache / "library")
    n_bytes = sum(path.lstat().st_size for path in shelf.orphans() if not path.is_symlink())
    if n_bytes:
        yield Finding(
            "costs",
            "files of the library belong to no model",
            f"nothing below {shelf.folder / 'names'} names them",
            f"{format_size(n_bytes)} of disk",
            "kvasir prune",
        )


def packed(scene: Scene) -> Iterator[Finding]:
    found = [x for x in (scene.cache / "packed").glob(f"*{UNFINISHED}") if _is_old(x, scene)]
    n_bytes = sum(path.stat().st_blocks * 512 for path in found)
    if found:
        yield Finding(
            "costs",
            f"{len(found)} packed files were never finished",
            f"*{UNFINISHED} below {scene.cache / 'packed'}, older than an hour",
            f"{format_size(n_bytes)} of disk",
            f"rm {scene.cache / 'packed'}/*{UNFINISHED}",
        )


def _is_old(path: Path, scene: Scene) -> bool:
    return scene.now() - path.stat().st_mtime > OLD_SECONDS
