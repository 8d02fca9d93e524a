"""Importance matrices as llama-imatrix writes them: GGUF files with the sums of squares of what
each matrix met of a text, and of how many rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.evaluation.calibrate import Calibration, Told
from kvasir.quantize.choose import PLAIN, linear_tensors
from kvasir.quantize.gguf_file import gguf_head, number_entry, text_entry, texts_entry
from kvasir.quantize.imatrix import COUNTS, SUMS
from kvasir.quantize.target import MadeTensor


class MadeImatrix(msgspec.Struct, frozen=True):
    """What was written."""

    n_tensors: int
    n_chunks: int
    chunk_size: int
    unknown: tuple[str, ...]
    """Matrices of which nothing is known: experts."""


def write_imatrix(
    model: str | None,
    text: str,
    n_chunks: int | None,
    output: Path,
    told: Told = lambda done, n: None,
) -> MadeImatrix:
    """Of the linears of a GGUF file, but for the language head; ``text``: a file, or ``self``. One
    that is quantized is computed in f32, for what its linears read are no rounded integers.
    Raises ConfigError, ModelError, OSError."""
    if output.exists() or output.is_symlink():
        raise ConfigError(f"--output {output} is there already: give another name, or remove it")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.absolute().parent}")
    loaded = load_model(model)
    if loaded.source.kind != "gguf":
        raise ConfigError(
            f"{loaded.source.path} is a folder: an imatrix has the names of a GGUF file's tensors, "
            "give that file"
        )
    tensors = linear_tensors(loaded)
    formats = {loaded.source.tensors[x].format for x in tensors}
    options = EngineOptions(dtype="auto" if formats <= set(PLAIN) else "float32")
    read = Calibration(loaded, tensors, options, text, n_chunks, told, has_grams=False)
    try:
        known = [x for x in tensors if read.knows(x)]
        size = max(map(len, read.chunks))
        keys = {
            "general.type": text_entry("general.type", "imatrix"),
            "imatrix.datasets": texts_entry("imatrix.datasets", [text]),
            "imatrix.chunk_count": number_entry("imatrix.chunk_count", len(read.chunks)),
            "imatrix.chunk_size": number_entry("imatrix.chunk_size", size),
        }
        _write(output, keys, _values(read, known))
    finally:
        read.close()
    unknown = tuple(x for x in tensors if x not in set(known))
    return MadeImatrix(len(known), len(read.chunks), size, unknown)


def _values(read: Calibration, tensors: list[str]) -> dict[str, np.ndarray]:
    """Of the tensors of the file: [1, K] and [1, 1], f32."""
    found = {}
    for name in tensors:
        inputs = read.inputs(name)
        assert inputs is not None
        sums = inputs.squares.astype(np.float64) * inputs.n
        found[name + SUMS] = sums.astype("<f4")[None]
        found[name + COUNTS] = np.array([[inputs.n]], "<f4")
    return found


def _write(output: Path, keys: dict[str, bytes], values: dict[str, np.ndarray]) -> None:
    """Whole or not at all."""
    targets = [MadeTensor(name, "F32", x.shape, x.nbytes) for name, x in sorted(values.items())]
    head, places, size = gguf_head(keys, targets)
    partial = output.with_name(f".{output.name}.part")
    try:
        with partial.open("wb") as stream:
            stream.write(head)
            for name, place in places.items():
                stream.seek(place)
                stream.write(values[name].tobytes())
            stream.truncate(size)
        partial.rename(output)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
