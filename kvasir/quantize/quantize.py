"""From a model to a quantized one under another name, which is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from kvasir.core.errors import ConfigError, ModelError
from kvasir.formats.types import TensorInfo
from kvasir.models.decoder import build_program
from kvasir.models.loaded import LoadedModel, load_model
from kvasir.quantize.blocks import Blocks
from kvasir.quantize.choose import Selection, choose
from kvasir.quantize.compressed import FolderMethod, Groups
from kvasir.quantize.filling import Piece, Told
from kvasir.quantize.folder import folder_pieces, write_folder
from kvasir.quantize.folds import folds_of
from kvasir.quantize.gguf_file import gguf_pieces, write_gguf_file
from kvasir.quantize.gptq import Calibrated, GptqGroups
from kvasir.quantize.scaled import Scaled, ScalingMethod
from kvasir.quantize.statistics import Statistics
from kvasir.quantize.target import RowMethod

_SPARE = 64 << 20
"""Bytes beyond the weights: the header, tokenizer files."""
_GROUPS = (128, 64, 32)


class Made(msgspec.Struct, frozen=True):
    """What was written."""

    path: str
    method: str
    source_bytes: int
    """Of tensors, as those of ``n_bytes``."""
    n_bytes: int
    n_quantized: int
    narrow: tuple[str, ...]
    """Linears that stayed as they were: rows that are no multiple of 32."""
    rounded: tuple[str, ...] = ()
    """Matrices that were rounded to the nearest, for nothing is known of what they read."""


CalibratedMethod = GptqGroups | ScalingMethod
"""Methods that choose by a text."""
Calibrate = Callable[[LoadedModel, Sequence[str]], Statistics]
"""Statistics of a model, of matrices by the names of their tensors, in the order in which they are
asked for."""


def quantize(
    model: str | None,
    method: FolderMethod | Blocks,
    output: Path,
    *,
    with_head: bool = False,
    told: Told = lambda done, n: None,
    calibrate: Calibrate | None = None,
) -> Made:
    """``calibrate``: for a ``CalibratedMethod``. Raises ConfigError where ``method`` and model do
    not fit, ModelError for weights that cannot be quantized or have no room, OSError."""
    if output.exists() or output.is_symlink():
        raise ConfigError(f"--output {output} is there already: give another name, or remove it")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.absolute().parent}")
    loaded = load_model(model, "none" if isinstance(method, Blocks) else None)
    _check_kind(loaded, method, output)
    choice = choose(loaded, with_head)
    if isinstance(method, Groups):
        _check_groups(loaded, method, choice)
    source = loaded.source
    calibrated = _calibrated(loaded, method, choice, calibrate)
    if isinstance(method, Blocks):
        pieces = gguf_pieces(source, method, choice)
    else:
        pieces = folder_pieces(source, _of(method, choice) if calibrated is None else calibrated.of)
    n_bytes = sum(x.n_bytes for piece in pieces for x in piece.targets)
    _check_room(output, n_bytes)
    metadata = {"quantize.method": method.name, "quantize.source_hash": source.content_hash}
    if calibrated is not None:
        metadata["quantize.calibration"] = calibrated.statistics.digest
    _write(output, loaded, method, choice, pieces, metadata, told)
    return Made(
        path=str(output),
        method=method.name,
        source_bytes=sum(piece.source.n_bytes for piece in pieces),
        n_bytes=n_bytes,
        n_quantized=len(choice.quantized),
        narrow=choice.narrow,
        rounded=() if calibrated is None else tuple(calibrated.rounded),
    )


def _of(method: FolderMethod, choice: Selection) -> Callable[[TensorInfo], RowMethod | None]:
    quantized = frozenset(choice.quantized)
    return lambda info: method if info.name in quantized else None


def _calibrated(
    loaded: LoadedModel,
    method: FolderMethod | Blocks,
    choice: Selection,
    calibrate: Calibrate | None,
) -> Calibrated | Scaled | None:
    """None for a method that takes no text."""
    if not isinstance(method, CalibratedMethod):
        return None
    if calibrate is None:
        raise ConfigError(f"{method.name} chooses by a text: give --calibration FILE or self")
    of_model = partial(calibrate, loaded)
    if isinstance(method, GptqGroups):
        return Calibrated(method, choice.quantized, of_model)
    tensors = {x.name: x for x in loaded.source.tensors.listing()}
    folds = folds_of(build_program(loaded.config), choice.quantized)
    return Scaled(method, tensors, choice.quantized, folds, of_model)


def _check_kind(loaded: LoadedModel, method: FolderMethod | Blocks, output: Path) -> None:
    kind, path = loaded.source.kind, loaded.source.path
    if isinstance(method, Blocks) and kind != "gguf":
        raise ConfigError(
            f"{method.name} is made of GGUF files, {path} is a folder: convert it with llama.cpp's "
            "convert_hf_to_gguf.py first, or take rtn, int8 or fp8"
        )
    if isinstance(method, Blocks) and output.suffix != ".gguf":
        raise ConfigError(f"--output {output}: the name of a GGUF file ends in .gguf")
    if not isinstance(method, Blocks) and kind == "gguf":
        raise ConfigError(
            f"{method.format} is made of Hugging Face folders, {path} is a GGUF file: give the "
            "model's folder, or take gguf:Q8_0, gguf:Q4_0 or gguf:Q4_1"
        )


def _check_groups(loaded: LoadedModel, method: Groups, choice: Selection) -> None:
    sizes = {name: loaded.source.tensors[name].shape[-1] for name in choice.quantized}
    name = next((x for x, k in sizes.items() if k % method.group), None)
    if name is None:
        return
    fitting = [g for g in _GROUPS if not any(k % g for k in sizes.values())]
    raise ConfigError(
        f"--group-size {method.group}: rows of {name} have {sizes[name]} elements, which is no "
        f"multiple; {', '.join(map(str, fitting))} would fit all {len(sizes)} matrices"
    )


def _check_room(output: Path, n_bytes: int) -> None:
    folder = output.absolute().parent
    free, needed = shutil.disk_usage(folder).free, n_bytes + _SPARE
    if free < needed:
        raise ModelError(
            f"{folder} has {free / 1e9:.2f} GB free, {output.name} needs {needed / 1e9:.2f} GB: "
            "make room, or give an --output on another disk",
            code="no_room",
        )


def _write(
    output: Path,
    loaded: LoadedModel,
    method: FolderMethod | Blocks,
    choice: Selection,
    pieces: Sequence[Piece],
    metadata: dict[str, str],
    told: Told,
) -> None:
    """Beside ``output`` first; then it gets its name."""
    source = loaded.source
    place = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.absolute().parent))
    try:
        if isinstance(method, Blocks):
            made = place / output.name
            write_gguf_file(made, source, method, pieces, metadata, told)
        else:
            made = place
            write_folder(made, source, method, choice, pieces, metadata, told)
        source.check_unchanged()
        load_model(str(made), "none" if isinstance(method, Blocks) else None)
        _keep(made)
        _take_name(made, output)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _keep(made: Path) -> None:
    """On the disk before it has its name, so that no power cut leaves half of it."""
    for path in [made] if made.is_file() else filter(Path.is_file, made.rglob("*")):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _take_name(made: Path, output: Path) -> None:
    """Raises ConfigError where somebody else took it meanwhile."""
    if output.exists():
        raise ConfigError(f"--output {output} is there by now: give another name, or remove it")
    if made.is_dir():
        made.chmod(0o755)
    made.rename(output)
