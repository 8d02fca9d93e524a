"""A model on disk, whatever its container: configuration, tensors, identity, files beside them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from kvasir.config.env import read_env
from kvasir.core.errors import ModelError, printable
from kvasir.formats.fields import get_int
from kvasir.formats.gguf import open_gguf
from kvasir.formats.jsonfile import parse_object, read_bounded
from kvasir.formats.mapped import TensorFile, TensorTable
from kvasir.formats.safetensors import open_folder, refuse_pickle
from kvasir.formats.types import TensorInfo
from kvasir.library.names import hub_name
from kvasir.library.shelf import Shelf, may_be_model, stored_path
from kvasir.weights.adapter import Adapter, base_folder, has_adapter, open_adapter
from kvasir.weights.content import HashMemory
from kvasir.weights.default import cached_default_model
from kvasir.weights.quantization.gguf_blocks import with_gguf_modules
from kvasir.weights.quantization.read import method_of, with_modules, with_quantization

_MAX_CONFIG = 4 << 20
_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt")
"""Of files, not of names."""
_EMBEDDINGS = {
    "gguf": ("token_embd.weight",),
    "hf": ("model.embed_tokens.weight", "model.text_model.embed_tokens.weight"),
}
_TOWERS = "clip"
"""Architecture of files of towers."""
_log = logging.getLogger("kvasir.weights")


@dataclass(frozen=True)
class ModelSource:
    """An opened model. Weights are mapped, not read."""

    path: Path
    kind: Literal["gguf", "hf"]
    name: str
    config: Mapping[str, object]
    """GGUF metadata, or config.json."""
    tensors: TensorTable
    files: tuple[TensorFile, ...] = ()
    """Where the tensors lie, and those of ``sight``."""
    sight: TensorFile | None = None
    """Beside a GGUF file, the tower of images (mmproj)."""
    sight_named: bool = False
    """Somebody asked for that file; else it lies in the same folder."""
    made: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What stands in place of files of a folder that is none."""
    quantization: str = ""
    """How a quantized checkpoint keeps its weights; of others nothing."""
    adapter: str = ""
    """What is merged into its weights, if anything."""
    adapter_folder: Path | None = None

    @cached_property
    def content_hash(self) -> str:
        """32 hex digits for what it computes: every byte of its files, and its config.

        Reads all of them when they have changed since the last time, so only who keeps something
        for another process asks for it; equal for copies.
        """
        memory = HashMemory(read_env().cache / "hashes")
        return self._named([memory.hash_of(file) for file in self.files])

    @cached_property
    def stamp_hash(self) -> str:
        """As ``content_hash`` on this machine, by the stamps of its files alone."""
        return self._named([repr(file.stamp) for file in self.files])

    def check_unchanged(self) -> None:
        """Raises ModelError when a file is not what it was when it was opened."""
        for file in self.files:
            if not file.is_unchanged:
                raise ModelError(f"{file.path} changed while it was loaded: start again")

    def _named(self, names: Sequence[str]) -> str:
        """By the name of each file, which of its tensors are used, and the config beside them."""
        used = {id(part) for info in self.tensors.listing() for part in _stored(info)}
        digest = hashlib.blake2b(digest_size=16)
        if self.kind == "hf":
            digest.update(repr(sorted(self.config.items())).encode())
            digest.update(self.adapter.encode())
        for name, file in zip(names, self.files, strict=True):
            taken = sorted(info.name for info in file.tensors.listing() if id(info) in used)
            digest.update(repr((name, taken)).encode())
        return digest.hexdigest()

    @property
    def origin(self) -> Path:
        """What another process opens as this model: not ``path`` where an adapter is merged."""
        return self.adapter_folder or self.path

    @property
    def n_embeddings(self) -> int | None:
        """Ids that the model can read and draw; None without an embedding matrix."""
        names = _EMBEDDINGS[self.kind]
        return next((self.tensors[x].shape[0] for x in names if x in self.tensors), None)

    @contextlib.contextmanager
    def named_errors(self) -> Iterator[None]:
        """A ModelError of a field in it names the model too."""
        try:
            yield
        except ModelError as error:
            if str(self.path) in error.message:
                raise
            raise ModelError(f"{self.path}: {error.message}", code=error.code) from None

    def release(self) -> None:
        """Give back the memory of tensor data that was read; the next look reads it again."""
        for file in self.files:
            file.release()

    def read(self, file: str, limit: int = _MAX_CONFIG) -> bytes | None:
        """A file of an HF folder, None when there is none. Raises ModelError above ``limit``."""
        path = self.path / file
        if self.kind != "hf" or not path.is_file():
            return None
        return read_bounded(path, limit)

    def read_json(self, file: str, limit: int = _MAX_CONFIG) -> Mapping[str, object]:
        """As ``read``, for a JSON object; empty when there is none."""
        if self.made:
            return self.made.get(file, {})
        data = self.read(file, limit)
        return {} if data is None else parse_object(data, str(self.path / file))


def _stored(info: TensorInfo) -> tuple[TensorInfo, ...]:
    """The tensors of the file that it is made of."""
    return info.module.tensors if info.module else (info,)


def open_model(path: str | Path, mmproj: str | None = None) -> ModelSource:
    """Open a GGUF file, a Hugging Face folder (config.json and safetensors), or a model of the
    library by its name.

    A folder with a LoRA adapter (PEFT) is the model that it was made for, with it merged.
    ``mmproj``: the file of a GGUF file's tower, or "none"; without it one that lies beside it and
    fits, if there is one alone. ``auto_map`` and other pointers to code in config.json are never
    followed.
    Raises ModelError with the field or tensor and a remedy.
    """
    asked = str(path)
    path = Path(path).expanduser()
    if not may_be_model(path):
        path = (_kept(asked) if path.exists() else _named(asked)) or path
    if path.is_dir():
        if mmproj not in (None, "none"):
            return _refused(path, mmproj)
        return _with_adapter(open_adapter(path)) if has_adapter(path) else _open_hf(path)
    refuse_pickle(path)
    if path.suffix == ".safetensors":
        raise ModelError(
            f"{path} is a file of weights alone: give the folder that also holds config.json"
        )
    file = open_gguf(path)
    source = ModelSource(
        path=path,
        kind="gguf",
        name=printable(path.stem),
        config=file.metadata,
        tensors=with_gguf_modules(file.tensors),
        files=(file,),
    )
    with source.named_errors():
        n_parts = get_int(file.metadata, "split.count", 1)
    if n_parts != 1:
        raise ModelError(
            f"{path}: split.count is {n_parts}, models in several GGUF files are not supported: "
            "merge them into one",
            code="unsupported_format",
        )
    return _with_sight(source, mmproj)


def _refused(folder: Path, mmproj: str | None) -> ModelSource:
    raise ModelError(f"mmproj {mmproj} is for GGUF files: {folder} has its own tower, or none")


def _with_sight(source: ModelSource, mmproj: str | None) -> ModelSource:
    """``source`` with the file of its tower. Raises ModelError where what is named is none."""
    if mmproj == "none":
        return source
    if mmproj is not None:
        file = open_gguf(Path(mmproj).expanduser())
        if file.metadata.get("general.architecture") != _TOWERS:
            raise ModelError(f"{mmproj} is no file of a tower (mmproj): give one, or 'none'")
        return replace(source, sight=file, sight_named=True, files=(*source.files, file))
    beside = [x for x in sorted(source.path.parent.glob("*mmproj*.gguf")) if x != source.path]
    found = [x for x in (_fitting(source, path) for path in beside) if x is not None]
    if len(found) != 1:
        names = ", ".join(printable(file.path.name) for file in found)
        if found:
            _log.warning("%s: beside it are %s: choose by --mmproj", source.path, names)
        return source
    return replace(source, sight=found[0], files=(*source.files, found[0]))


def _fitting(source: ModelSource, path: Path) -> TensorFile | None:
    """A tower whose rows are as wide as the embeddings of the model; what is broken is none, with a
    warning."""
    try:
        file = open_gguf(path)
    except ModelError as error:
        _log.warning("%s: no tower of images is read from it", error.message)
        return None
    arch, said = source.config.get("general.architecture"), file.metadata
    width = source.config.get(f"{arch}.embedding_length")
    is_tower = said.get("general.architecture") == _TOWERS
    return file if is_tower and said.get("clip.vision.projection_dim") == width else None


def _kept(name: str) -> Path | None:
    """Where the model of the library called ``name`` lies; None where it is not here."""
    default = cached_default_model()
    return default if default is not None and name == default.stem else stored_path(name)


def _named(name: str) -> Path | None:
    """As ``_kept``; None for what is no name. Raises ModelError where it is not here."""
    found = _kept(name)
    if found is not None:
        return found
    if hub_name(name) is not None:
        raise ModelError(
            f"{name} is not here: kvasir pull {name} fetches it from the hub, kvasir list shows "
            "what is here",
            code="model_not_found",
        )
    is_path = "/" in name or Path(name).suffix in _SUFFIXES
    return None if is_path or not name else Shelf().path(Shelf().known(name))


def _with_adapter(adapter: Adapter) -> ModelSource:
    """The model that it was made for, with it merged."""
    base = base_folder(adapter) or (_named(adapter.base) if adapter.base else None)
    if base is None or not base.is_dir():
        raise ModelError(
            f"{adapter.folder} is an adapter for {printable(adapter.base) or 'an unnamed model'}, "
            "which is not here as a folder: fetch it, or put the adapter's folder into it",
            code="model_not_found",
        )
    source = _open_hf(base)
    return replace(
        source,
        name=f"{source.name}-{printable(adapter.folder.resolve().name)}",
        tensors=adapter.merged(source.tensors),
        files=(*source.files, adapter.file),
        adapter=adapter.identity,
        adapter_folder=adapter.folder,
    )


def _open_hf(folder: Path) -> ModelSource:
    said = parse_object(
        read_bounded(folder / "config.json", _MAX_CONFIG), str(folder / "config.json")
    )
    config = with_quantization(folder, said)
    method = method_of(config, str(folder / "config.json"))
    tensors, files = open_folder(folder)
    if method is not None:
        tensors = with_modules(method, tensors, str(folder))
    return ModelSource(
        path=folder,
        kind="hf",
        name=printable(folder.resolve().name),
        config=config,
        tensors=tensors,
        files=tuple(files),
        quantization=method.text if method else "",
    )
