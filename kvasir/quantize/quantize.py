"""From a model to a quantized one under another name, which is there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.checkpoints.tensors import build_program
from kvasir.core.errors import ConfigError, KvasirError, ModelError
from kvasir.formats.types import TensorInfo
from kvasir.quantize.choose import Selection, choose
from kvasir.quantize.filling import Piece, Told
from kvasir.quantize.folder import folder_pieces, write_folder
from kvasir.quantize.folds import folds_of
from kvasir.quantize.gguf_file import gguf_pieces, write_gguf_file
from kvasir.quantize.gptq import Calibrated, GptqGroups
from kvasir.quantize.groups import Groups
from kvasir.quantize.important import Important
from kvasir.quantize.judged import KEY, ROOM, Judge, fill_in
from kvasir.quantize.mixtures import GgufMethod
from kvasir.quantize.nvfp4 import Nvfp4Matrices, Nvfp4Rows
from kvasir.quantize.place import PartialOutput
from kvasir.quantize.repack import Repack, Repacked, repacked
from kvasir.quantize.scaled import Scaled, ScalingMethod
from kvasir.quantize.statistics import Statistics
from kvasir.quantize.target import FolderMethod, RowMethod

SPARE = 64 << 20
"""Bytes beyond the weights: the header, tokenizer files."""
_GROUPS = (128, 64, 32)
NO_ROOM = "no_room"
VERSION = 2
"""Of the arithmetic: what was begun with another is begun again."""


class Made(msgspec.Struct, frozen=True):
    """What was written."""

    path: str
    method: str
    source_bytes: int
    """Of tensors, as those of ``n_bytes``."""
    n_bytes: int
    n_quantized: int
    narrow: tuple[str, ...]
    """Linears that stayed as they were: rows that are no multiple of ``multiple``."""
    rounded: tuple[str, ...] = ()
    """Matrices that were rounded to the nearest, for nothing is known of what they read."""
    n_before: int = 0
    """Tensors that a run before this one had written."""
    multiple: int = 32


Method = FolderMethod | Repacked | GgufMethod
AskedMethod = Method | Repack
CalibratedMethod = GptqGroups | ScalingMethod
"""Methods that choose by a text."""
Calibrate = Callable[[LoadedModel, Sequence[str], Path], Statistics]
"""Statistics of a model, of matrices by the names of their tensors, in the order in which they are
asked for; the path is where chunks that the model writes are kept."""


class _Plan(NamedTuple):
    names: tuple[str, ...]
    """Tensors that are quantized."""
    pieces: Sequence[Piece]
    chosen: Calibrated | Scaled | Important | None
    """What a text says."""


def quantize(
    model: str | None,
    asked: AskedMethod,
    output: Path,
    *,
    with_head: bool = False,
    told: Told = lambda done, n: None,
    calibrate: Calibrate | None = None,
    judge: Judge | None = None,
) -> Made:
    """``calibrate``: for a ``CalibratedMethod``; ``judge``: of the model that is made, before it
    has its name. Raises ConfigError where the method and model do not fit, ModelError for weights
    that cannot be quantized or have no room, OSError, and what ``judge`` raises."""
    if output.exists() or output.is_symlink():
        raise ConfigError(f"--output {output} is there already: give another name, or remove it")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.absolute().parent}")
    loaded = load_model(model, "none" if isinstance(asked, GgufMethod) else None)
    _check_kind(loaded, asked, output)
    method, choice = _method(loaded, asked, with_head)
    if isinstance(method, Groups):
        _check_groups(loaded, method, choice)
    place = PartialOutput(output, _settings(loaded, method, with_head, judge))
    try:
        made = _made(loaded, method, choice, calibrate, place, told, judge)
        if judge is not None:
            fill_in(place.made, judge(place.made))
        _keep(place.made)
        _take_name(place.made, output)
    except (KvasirError, OSError) as error:
        if place.has_work and (isinstance(error, OSError) or error.code == NO_ROOM):
            raise _kept(error, place) from error
        place.remove()
        raise
    else:
        place.remove()  # while it is ours: the next one may have it as soon as it is closed
    finally:
        place.close()
    return msgspec.structs.replace(made, path=str(output))


def _method(loaded: LoadedModel, asked: AskedMethod, with_head: bool) -> tuple[Method, Selection]:
    """And what it is applied to."""
    if isinstance(asked, Repack):
        if with_head:
            raise ConfigError("--lm-head quantizes the head, and repack nothing: leave it out")
        return repacked(loaded, asked.container)
    return asked, choose(loaded, with_head, _multiple(asked))


def _kept(error: KvasirError | OSError, place: PartialOutput) -> ModelError:
    """Of a disk that is full, or gone for a while: what took hours is there."""
    said = error.message if isinstance(error, KvasirError) else f"{place.folder}: {error.strerror}"
    return ModelError(
        f"{said}. {place.n_done} tensors that are done are kept in {place.folder}: the same "
        "command goes on with them once there is room; remove that folder to begin anew",
        code=NO_ROOM,
    )


def _settings(
    loaded: LoadedModel, method: Method, with_head: bool, judge: Judge | None
) -> dict[str, object]:
    """What the bytes depend on, but for the text."""
    found = {"method": method.name, "source": loaded.source.content_hash, "head": with_head}
    return found | {"judged": judge is not None, "version": VERSION}


def _made(
    loaded: LoadedModel,
    method: Method,
    choice: Selection,
    calibrate: Calibrate | None,
    place: PartialOutput,
    told: Told,
    judge: Judge | None,
) -> Made:
    """In its place."""
    plan = _plan(loaded, method, choice, calibrate, place.text)
    n_bytes = sum(x.n_bytes for piece in plan.pieces for x in piece.targets)
    _check_room(place.made, n_bytes - place.n_bytes)
    source, chosen = loaded.source, plan.chosen
    metadata = {"quantize.method": method.name, "quantize.source_hash": source.content_hash}
    if chosen is not None:
        metadata["quantize.calibration"] = chosen.statistics.digest
    if judge is not None:
        metadata[KEY] = ROOM
    done = place.begin(metadata.get("quantize.calibration", ""), n_bytes)
    if chosen is not None:
        chosen.skip(done)
    _write(loaded, method, choice, plan.pieces, metadata, place, told)
    return Made(
        path="",
        method=method.name,
        source_bytes=sum(piece.source.n_bytes for piece in plan.pieces),
        n_bytes=n_bytes,
        n_quantized=len(plan.names),
        narrow=choice.narrow,
        rounded=() if chosen is None else chosen.rounded,
        n_before=len(done),
        multiple=_multiple(method),
    )


def _multiple(method: Method) -> int:
    return 32 if isinstance(method, GgufMethod) else method.multiple


def _plan(
    loaded: LoadedModel,
    method: Method,
    choice: Selection,
    calibrate: Calibrate | None,
    text: Path,
) -> _Plan:
    source = loaded.source
    if isinstance(method, GgufMethod):
        formats = method.formats(source, choice)
        important = _important(loaded, method, tuple(formats), calibrate, text)
        squares = None if important is None else important.squares
        return _Plan(tuple(formats), gguf_pieces(source, formats, squares), important)
    chosen = _calibrated(loaded, method, choice, calibrate, text)
    of = chosen.of if chosen else _of(loaded, method, choice)
    return _Plan(choice.quantized, folder_pieces(source, of), chosen)


def _of(
    loaded: LoadedModel, method: FolderMethod | Repacked, choice: Selection
) -> Callable[[TensorInfo], RowMethod | None]:
    quantized = frozenset(choice.quantized)
    if isinstance(method, Repacked):
        return method.of
    if isinstance(method, Nvfp4Rows):
        infos = [loaded.source.tensors[x] for x in choice.quantized]
        return Nvfp4Matrices(infos, folds_of(build_program(loaded.config), quantized)).of
    return lambda info: method if info.name in quantized else None


def _important(
    loaded: LoadedModel,
    method: GgufMethod,
    tensors: tuple[str, ...],
    calibrate: Calibrate | None,
    text: Path,
) -> Important | None:
    """None where no text is given."""
    if calibrate is None:
        return None
    if not method.is_mixed:
        raise ConfigError(f"{method.name} takes no --calibration: take a mixture such as Q4_K_M")
    return Important(tensors, lambda names: calibrate(loaded, names, text))


def _calibrated(
    loaded: LoadedModel,
    method: FolderMethod | Repacked,
    choice: Selection,
    calibrate: Calibrate | None,
    text: Path,
) -> Calibrated | Scaled | None:
    """None for a method that takes no text."""
    if not isinstance(method, CalibratedMethod):
        return None
    if calibrate is None:
        raise ConfigError(f"{method.name} chooses by a text: give --calibration FILE or self")

    def of_model(names: Sequence[str]) -> Statistics:
        return calibrate(loaded, names, text)

    if isinstance(method, GptqGroups):
        return Calibrated(method, choice.quantized, of_model)
    tensors = {x.name: x for x in loaded.source.tensors.listing()}
    folds = folds_of(build_program(loaded.config), choice.quantized)
    return Scaled(method, tensors, choice.quantized, folds, of_model)


def _check_kind(loaded: LoadedModel, method: AskedMethod, output: Path) -> None:
    kind, path = loaded.source.kind, loaded.source.path
    if isinstance(method, GgufMethod) and kind != "gguf":
        raise ConfigError(
            f"{method.name} is made of GGUF files, {path} is a folder: convert it with llama.cpp's "
            "convert_hf_to_gguf.py first, or take rtn, int8 or fp8"
        )
    if isinstance(method, GgufMethod) and output.suffix != ".gguf":
        raise ConfigError(f"--output {output}: the name of a GGUF file ends in .gguf")
    if not isinstance(method, GgufMethod) and kind == "gguf":
        raise ConfigError(
            f"{method.name} is made of Hugging Face folders, {path} is a GGUF file: give the "
            "model's folder, or take gguf:Q8_0, gguf:Q4_K_M and the like"
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
    free, needed = shutil.disk_usage(folder).free, n_bytes + SPARE
    if free < needed:
        raise ModelError(
            f"{folder} has {free / 1e9:.2f} GB free, {output.name} needs {needed / 1e9:.2f} GB: "
            "make room, or give an --output on another disk",
            code=NO_ROOM,
        )


def _write(
    loaded: LoadedModel,
    method: Method,
    choice: Selection,
    pieces: Sequence[Piece],
    metadata: dict[str, str],
    place: PartialOutput,
    told: Told,
) -> None:
    """Whole."""
    source, made = loaded.source, place.made
    if isinstance(method, GgufMethod):
        write_gguf_file(made, source, method, pieces, metadata, place, told)
    else:
        made.mkdir(exist_ok=True)
        write_folder(made, source, method, choice, pieces, metadata, place, told)
    source.check_unchanged()
    load_model(str(made), "none" if isinstance(method, GgufMethod) else None)


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
