"""Pulls a model: what there is, what would fit, and then its files, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import PurePosixPath

import msgspec

from kvasir.config.hardware import free_memory
from kvasir.config.sizes import format_size
from kvasir.core.errors import ModelError
from kvasir.library.headers import fetched_header
from kvasir.library.hub import Hub, HubRepo
from kvasir.library.names import HubName
from kvasir.library.quants import Fit, Fits, HubFile, Quant, chosen, listed, quants, tagged
from kvasir.library.shelf import Shelf
from kvasir.library.stored import StoredFile, StoredModel
from kvasir.library.transfer import Progress, TransferPatience, fetch_file

_WANTED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".safetensors")
_FOLDERS = ("", "1_Pooling", "2_Dense", "3_Dense", "2_Normalize", "3_Normalize", "4_Normalize")
"""Of a folder that is a model: those of sentence-transformers are part of it, others hold the same
weights for something else."""

OfHeader = Callable[..., Fits]
"""(path, bytes of its header, quants) -> what each would be here."""


class Told(msgspec.Struct, frozen=True):
    """Who wants to know how far a pull is."""

    fits: Callable[[Sequence[Quant], Fits, Quant], None]
    """What there is, what each would be here, and which one is taken."""
    file: Callable[[HubFile], Progress]
    """Of each file in turn."""
    checking: Callable[[HubFile], None] = lambda file: None
    """When it is here, and its hash is computed: a second or two a gigabyte."""


class Puller:
    def __init__(self, shelf: Shelf, hub: Hub, of_header: OfHeader, told: Told) -> None:
        self._shelf = shelf
        self._hub = hub
        self._of_header = of_header
        self._told = told

    def pull(
        self, name: HubName, *, force: bool = False, patience: TransferPatience | None = None
    ) -> StoredModel:
        """The model called ``name``, whole. ``force``: although it would not start here. Raises
        ModelError; what was fetched stays, and is gone on with."""
        repo = self._hub.open(name.repo, name.revision)
        found = quants(repo.files)
        if found:
            quant = self._quant(name, repo, found, force=force)
            model = self._of_file(name, repo, quant)
            files: Sequence[HubFile] = (quant.file,)
        else:
            files = _folder_files(repo)
            if not force:
                _check_memory(repo, files)
            model = self._of_folder(name, repo, files)
        self._shelf.keep(model)
        for file in files:
            place = self._shelf.files / model.folder / file.name
            source, checking = self._hub.source(repo, file), partial(self._told.checking, file)
            fetch_file(source, file, place, self._told.file(file), patience, checking)
        return model

    def _quant(self, name: HubName, repo: HubRepo, found: Sequence[Quant], *, force: bool) -> Quant:
        asked = tagged(found, name.tag, repo.repo) if name.tag else None
        if asked is not None and asked.n_files > 1 and not force:
            raise ModelError(
                f"{repo.repo}:{asked.tag} is in {asked.n_files} files, and one is read here: merge "
                f"them (llama-gguf-split --merge), or take another of {listed(found)}",
                code="unsupported_format",
            )
        fits: Fits = {} if force else self._fits(repo, asked, found)
        quant = asked or chosen(found, fits, repo.repo)
        refusal = fits.get(quant.tag, Fit()).refusal
        self._told.fits(found, fits, quant)
        if refusal:
            raise ModelError(
                f"{repo.repo}:{quant.tag} would not start here: {refusal}. Nothing was fetched; "
                "--force does it all the same",
                code="model_does_not_fit",
            )
        return quant

    def _fits(self, repo: HubRepo, asked: Quant | None, found: Sequence[Quant]) -> Fits:
        """Of the header of one of them: the others differ in bytes alone."""
        whole = [quant for quant in found if quant.n_files == 1]
        if not whole:
            return {}
        read = asked or next((x for x in whole if x.tag == "Q4_K_M"), whole[0])
        source = self._hub.source(repo, read.file)
        with fetched_header(source, read.file, self._shelf.folder) as (path, n_header):
            return self._of_header(path, n_header, read, whole)

    def _of_file(self, name: HubName, repo: HubRepo, quant: Quant) -> StoredModel:
        called = HubName(name.repo, quant.tag, name.revision)
        return self._model(called, repo, (quant.file,), quant.file.name)

    def _of_folder(self, name: HubName, repo: HubRepo, files: Sequence[HubFile]) -> StoredModel:
        if name.tag:
            raise ModelError(
                f"{name.repo} has no GGUF files, so no {name.tag}: leave :{name.tag} out for the "
                "unquantized model",
                code="model_not_found",
            )
        return self._model(HubName(name.repo, "", name.revision), repo, files, "")

    def _model(
        self, called: HubName, repo: HubRepo, files: Sequence[HubFile], main: str
    ) -> StoredModel:
        return StoredModel(
            name=str(called),
            folder=f"{repo.repo.replace('/', '--')}@{repo.commit[:12]}/"
            + repo.repo.partition("/")[2],
            files=tuple(StoredFile(x.name, x.n_bytes, x.digest) for x in files),
            main=main,
            source=f"hf.co/{repo.repo}",
            revision=repo.commit,
            asked=called.revision,
            created=int(time.time()),
        )


def _check_memory(repo: HubRepo, files: Sequence[HubFile]) -> None:
    """Raises ModelError where its weights alone are more than what is free: a header of a GGUF file
    would say more."""
    n_bytes = sum(file.n_bytes for file in files if file.name.endswith(".safetensors"))
    free = free_memory()
    if free and n_bytes > free:
        raise ModelError(
            f"{repo.repo} would not start here: its weights are {format_size(n_bytes)}, "
            f"{format_size(free)} of memory are free. Nothing was fetched; look for a GGUF "
            f"repository of it, in 4 bits; --force fetches it all the same",
            code="model_does_not_fit",
        )


def _folder_files(repo: HubRepo) -> list[HubFile]:
    """What a model of safetensors needs, small files first. Raises ModelError."""
    names = {file.name for file in repo.files}
    wanted = [
        file
        for file in repo.files
        if (path := PurePosixPath(file.name)).suffix in _WANTED
        and str(path.parent).removeprefix(".") in _FOLDERS
        and not path.name.startswith(("consolidated", "."))
    ]
    has_weights = any(file.name.endswith(".safetensors") for file in wanted)
    if "config.json" not in names or not has_weights:
        what = "pickled weights alone" if any(x.endswith(".bin") for x in names) else "no model"
        raise ModelError(
            f"{repo.repo} has {what}: a GGUF file, or config.json with safetensors, is needed",
            code="unsupported_format",
        )
    return sorted(wanted, key=lambda file: (file.n_bytes, file.name))
