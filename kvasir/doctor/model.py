"""One model: whether it is whole, and whether it would start here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.config.advice import advise
from kvasir.config.options import EngineOptions
from kvasir.config.sizes import format_size
from kvasir.core.errors import ModelError
from kvasir.doctor.finding import Finding, Scene
from kvasir.exec.backends import backend_of
from kvasir.library.names import hub_name
from kvasir.library.shelf import Shelf, may_be_model
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.source import ModelSource, open_model

LFS = b"version https://git-lfs"
HASHED_BYTES = 1 << 30
"""Up to which a file is hashed without being asked to: under a second."""
CHUNK = 4 << 20
INDEX = "model.safetensors.index.json"
AGAIN = "fetch it again: kvasir rm and kvasir pull, or from where it was copied"


def place_of(scene: Scene) -> Path | None:
    """Of the model that is asked about; None without one, or when it is not here."""
    if scene.model is None:
        return None
    path = Path(scene.model).expanduser()
    if may_be_model(path):
        return path
    shelf = Shelf(scene.cache / "library")
    found = shelf.find(scene.model)
    if found is not None and shelf.is_whole(found):
        return shelf.path(found)
    return path if path.exists() else None


def missing(scene: Scene) -> Iterator[Finding]:
    if scene.model is not None and place_of(scene) is None:
        is_hubs = hub_name(scene.model) is not None
        yield Finding(
            "blocks",
            f"{scene.model} is not here",
            "no such path, and no whole model of that name in the library",
            "it cannot be loaded",
            f"kvasir pull {scene.model}" if is_hubs else "kvasir list shows what is here",
        )


def pointers(scene: Scene) -> Iterator[Finding]:
    for path in _files(place_of(scene)):
        if path.stat().st_size < 1024 and _starts_with(path, LFS):
            yield Finding(
                "blocks",
                f"{path.name} is a pointer of Git LFS, not the file",
                f"it begins with {LFS.decode()}",
                "the model does not load",
                "git lfs install && git lfs pull in that folder, or kvasir pull",
            )


def shards(scene: Scene) -> Iterator[Finding]:
    place = place_of(scene)
    if place is None or not (place / INDEX).is_file():
        return
    try:
        named = msgspec.json.decode((place / INDEX).read_bytes())["weight_map"].values()
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        named = ()
    for name in sorted({str(each) for each in named}):
        if not (place / name).is_file():
            yield Finding(
                "blocks",
                f"{name} is missing",
                f"{INDEX} names it",
                "the model does not load",
                AGAIN,
            )


def readable(scene: Scene) -> Iterator[Finding]:
    """Cut, damaged, or of a kind that does not run."""
    place = place_of(scene)
    if place is None or any(pointers(scene)) or any(shards(scene)):
        return
    try:
        loaded = load_model(str(place))
        model_facts(loaded)
    except ModelError as error:
        is_cut = "truncated" in error.message or "left for" in error.message
        yield Finding(
            "blocks",
            "the model is cut short" if is_cut else "the model cannot be read",
            error.message,
            "it does not load",
            AGAIN if is_cut else "kvasir inspect families shows what runs; use another file of it",
        )


def hashes(scene: Scene) -> Iterator[Finding]:
    """Of a model of the library whose hashes are known."""
    shelf = Shelf(scene.cache / "library")
    model = shelf.find(scene.model) if scene.model is not None else None
    if model is None or not shelf.is_whole(model):
        return
    for file, path in zip(model.files, shelf.places(model), strict=True):
        kind, _, wanted = file.digest.partition(":")
        is_short = file.n_bytes <= HASHED_BYTES or scene.reads_all
        if kind == "sha256" and is_short and _sha256(path) != wanted:
            yield Finding(
                "blocks",
                f"{file.name} is not what was fetched",
                f"its SHA-256 is not {wanted}",
                "answers are wrong, or it does not load",
                f"kvasir rm {model.name} && kvasir pull {model.name}",
            )


def tokenizer(scene: Scene) -> Iterator[Finding]:
    source = _source(scene)
    if source is None:
        return
    try:
        found = load_tokenizer(source)
    except ModelError as error:
        yield Finding(
            "blocks",
            "the model has no tokenizer that can be read",
            error.message,
            "no text becomes tokens",
            "put tokenizer.json beside config.json, or use a GGUF file, which has it inside",
        )
        return
    problem = ChatTemplate(source, found).problem
    if problem is not None:
        yield Finding(
            "costs",
            "the model has no chat template that can be used",
            str(problem),
            "kvasir chat and chat completions refuse; completions work",
            "use the instruct version of the model, or put chat_template.jinja beside it",
        )


def fit(scene: Scene) -> Iterator[Finding]:
    place = place_of(scene)
    if place is None or _source(scene) is None:
        return
    try:
        facts = model_facts(load_model(str(place)))
    except ModelError:
        return  # told already
    options, backend = EngineOptions(model=str(place)), backend_of("cpu")
    advice = advise(options, facts, backend.probe(), backend.settings)
    if advice.refusal:
        yield Finding(
            "blocks",
            "the model does not fit into memory",
            f"{format_size(advice.weight_bytes)} of weights, {format_size(advice.free_memory)} "
            f"free: {advice.refusal}",
            "it does not start",
            f"kvasir plan memory {scene.model} shows what helps",
        )


def _source(scene: Scene) -> ModelSource | None:
    place = place_of(scene)
    try:
        return None if place is None else open_model(place)
    except ModelError:
        return None


def _files(place: Path | None) -> list[Path]:
    if place is None:
        return []
    return sorted(x for x in place.iterdir() if x.is_file()) if place.is_dir() else [place]


def _starts_with(path: Path, words: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(words)) == words


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while data := stream.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()
