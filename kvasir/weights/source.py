"""A model on disk, whatever its container: configuration, tensors, identity, files beside them."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from kvasir.weights.content import HashMemory
from kvasir.weights.quantization.gguf_blocks import with_gguf_modules
from kvasir.weights.quantization.read import method_of, with_modules, with_quantization

_MAX_CONFIG = 4 << 20
_EMBEDDINGS = {
    "gguf": ("token_embd.weight",),
    "hf": ("model.embed_tokens.weight", "model.text_model.embed_tokens.weight"),
}
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


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
    """Where the tensors lie."""
    quantization: str = ""
    """How a quantized checkpoint keeps its weights; of others nothing."""

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
        for name, file in zip(names, self.files, strict=True):
            taken = sorted(info.name for info in file.tensors.listing() if id(info) in used)
            digest.update(repr((name, taken)).encode())
        return digest.hexdigest()

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
        data = self.read(file, limit)
        return {} if data is None else parse_object(data, str(self.path / file))


def _stored(info: TensorInfo) -> tuple[TensorInfo, ...]:
    """The tensors of the file that it is made of."""
    return info.module.tensors if info.module else (info,)


def open_model(path: str | Path) -> ModelSource:
    """Open a GGUF file or a Hugging Face folder (config.json and safetensors).

    ``auto_map`` and other pointers to code in config.json are never followed.
    Raises ModelError with the field or tensor and a remedy.
    """
    asked = str(path)
    path = Path(path).expanduser()
    if path.is_dir():
        return _open_hf(path)
    if _HUB_ID.fullmatch(asked) and not path.exists() and path.suffix != ".gguf":
        raise ModelError(
            f"{asked} does not exist here. If it is a name of the Hugging Face hub, get the model "
            f"first (pip install huggingface-hub; hf download {asked} --local-dir {path.name}), "
            f"then give its folder, {path.name}, or the GGUF file in it",
            code="model_not_found",
        )
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
    return source


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
