"""A Hugging Face folder of weights that a method made, and the files beside them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from kvasir.formats.safetensors import INDEX_NAME, SINGLE_NAME
from kvasir.formats.types import TensorInfo
from kvasir.quantize.choose import Selection
from kvasir.quantize.filling import Piece, Told, WrittenTensors, copied, fill, opened
from kvasir.quantize.target import FolderForm, RowMethod
from kvasir.weights.source import ModelSource

_BESIDE = (".json", ".txt", ".jinja", ".model", ".tiktoken")
"""Ends of names of files beside the weights that are copied: tokenizers, templates, settings."""
_STEP = re.compile(r"[0-9]+_[A-Za-z]+")
"""Folders of sentence-transformers: what is done with the rows of the model, 1_Pooling and on."""
_CODE = ("*.py", "*.bin", "*.pt")
"""What runs when it is loaded is not handed on."""
_OWN = ("config.json", INDEX_NAME, "quantize_config.json", "hf_quant_config.json")


def folder_pieces(source: ModelSource, of: Callable[[TensorInfo], RowMethod | None]) -> list[Piece]:
    """In the order of the tensors. ``of``: the method of each, None for those that are copied."""
    pairs = ((x, of(x)) for x in source.tensors.listing())
    return [
        copied(x) if how is None else Piece(x, how.targets(x.name, x.shape), how)
        for x, how in pairs
    ]


def write_folder(
    folder: Path,
    source: ModelSource,
    form: FolderForm,
    choice: Selection,
    pieces: Sequence[Piece],
    metadata: dict[str, str],
    record: WrittenTensors,
    told: Told,
) -> None:
    """Weights, config, and the files beside them, into a folder that is empty or has part of
    them."""
    _write_weights(folder / SINGLE_NAME, source, pieces, metadata, record, told)
    config = {**source.config, "quantization_config": form.config(_kept(choice))}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in sorted(source.path.iterdir()):
        if path.is_file() and path.suffix in _BESIDE and path.name not in _OWN:
            shutil.copyfile(path, folder / path.name)
        elif path.is_dir() and _STEP.fullmatch(path.name):
            shutil.copytree(
                path,
                folder / path.name,
                ignore=shutil.ignore_patterns(*_CODE),
                dirs_exist_ok=True,
            )


def _write_weights(
    path: Path,
    source: ModelSource,
    pieces: Sequence[Piece],
    metadata: dict[str, str],
    record: WrittenTensors,
    told: Told,
) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    places, at = dict[str, int](), 0
    for target in (x for piece in pieces for x in piece.targets):
        places[target.name] = at
        span = [at, at + target.n_bytes]
        header[target.name] = {
            "dtype": target.dtype,
            "shape": list(target.shape),
            "data_offsets": span,
        }
        at += target.n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    with opened(path, len(text).to_bytes(8, "little") + text, begin + at) as stream:
        found = {name: begin + place for name, place in places.items()}
        fill(stream, pieces, found, source.release, record, told)


def _kept(choice: Selection) -> tuple[str, ...]:
    modules = {name.removesuffix(".weight") for name in choice.kept if name.endswith(".weight")}
    if "lm_head.weight" not in choice.quantized:
        modules.add("lm_head")  # of tied embeddings no tensor is called so
    return tuple(sorted(modules))
