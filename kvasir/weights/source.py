"""A model on disk, whatever its container: configuration, tensors, identity, files beside them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from kvasir.core.errors import ModelError, printable
from kvasir.formats.fields import get_int
from kvasir.formats.gguf import open_gguf
from kvasir.formats.jsonfile import parse_object, read_bounded
from kvasir.formats.mapped import TensorFile, TensorTable
from kvasir.formats.safetensors import open_folder, refuse_pickle

_MAX_CONFIG = 4 << 20
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_SAMPLE = 256
"""Bytes hashed at the start, in the middle and at the end of every tensor."""


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

    @cached_property
    def content_hash(self) -> str:
        """32 hex digits; see ``content_hash``. Computed when asked for: text needs none."""
        extra = repr(sorted(self.config.items())).encode() if self.kind == "hf" else b""
        return content_hash(self.files, extra)

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
    n_parts = get_int(file.metadata, "split.count", 1)
    if n_parts != 1:
        raise ModelError(
            f"{path}: split.count is {n_parts}, models in several GGUF files are not supported: "
            "merge them into one",
            code="unsupported_format",
        )
    return ModelSource(
        path=path,
        kind="gguf",
        name=printable(path.stem),
        config=file.metadata,
        tensors=file.tensors,
        files=(file,),
    )


def _open_hf(folder: Path) -> ModelSource:
    config = parse_object(
        read_bounded(folder / "config.json", _MAX_CONFIG), str(folder / "config.json")
    )
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = (
            quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        )
        raise ModelError(
            f"{folder / 'config.json'}: quantization_config {method!r} is not supported: "
            "use the model's unquantized safetensors, or a GGUF file",
            code="unsupported_format",
        )
    tensors, files = open_folder(folder)
    return ModelSource(
        path=folder,
        kind="hf",
        name=printable(folder.resolve().name),
        config=config,
        tensors=tensors,
        files=tuple(files),
    )


def content_hash(files: Iterable[TensorFile], extra: bytes = b"") -> str:
    """Identity of weights without reading them: BLAKE2b of what any change of a file would touch.

    Covers headers (names, shapes, metadata), sizes, modification times, and samples of every
    tensor. A copy that does not keep the modification time counts as another model, which costs a
    cache miss; a stale hit would cost a wrong answer.
    """
    digest = hashlib.blake2b(extra, digest_size=16)
    for file in files:
        modified = file.path.stat().st_mtime_ns
        digest.update(f"{file.path.name} {file.n_bytes} {modified} {file.header.size}|".encode())
        digest.update(file.header.tobytes())
        for info in file.tensors.listing():
            for start in (0, info.data.size // 2, max(0, info.data.size - _SAMPLE)):
                digest.update(info.data[start : start + _SAMPLE].tobytes())
    return digest.hexdigest()
