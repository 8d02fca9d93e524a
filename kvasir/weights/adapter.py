"""LoRA adapters (Hu et al. 2021) as PEFT saves them, merged into the weights of the model that they
are for: a folder with adapter_config.json opens as that model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from os.path import isfile
from pathlib import Path

from kvasir.core.errors import ModelError, printable
from kvasir.formats.jsonfile import read_object
from kvasir.formats.mapped import TensorFile, TensorTable
from kvasir.formats.safetensors import open_safetensors, refuse_pickle
from kvasir.formats.types import TensorInfo

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"
_MAX_CONFIG = 1 << 20
_MAX_RANK = 1 << 12
_MAX_ALPHA = 1 << 24
_PLAIN = ("F32", "F16", "BF16")
_BEFORE = "base_model.model."
"""Names of modules."""
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_DOWN_ROWS, _UP_ROWS = ".lora_embedding_A", ".lora_embedding_B"
"""Of embeddings, each transposed."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}
"""What these have to be, beside nothing."""
_READ = """
r lora_alpha use_rslora base_model_name_or_path task_type inference_mode lora_dropout revision
target_modules exclude_modules layers_to_transform layers_pattern auto_mapping peft_version
megatron_core megatron_config qalora_group_size eva_config
"""
_HARMLESS = frozenset(_READ.split())
"""Of training, or what the tensors say themselves."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A weight plus ``scale`` times up by down."""

    plain: TensorInfo
    down: TensorInfo
    up: TensorInfo
    scale: float
    of_rows: bool
    """Of embeddings."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return self.plain, self.down, self.up

    def rows(self) -> memoryview:
        """f32. Raises ModelError where one is not finite."""
        from kvasir.weights.adapter_rows import merged_rows

        out = merged_rows(self.plain, self.down, self.up, self.scale, self.of_rows)
        if not all(map(isfinite, (out.min(), out.max()))):
            raise ModelError(f"tensor '{self.up.name}' makes numbers that are not finite")
        return out.reshape(-1).data.cast("B")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An opened folder. Weights are mapped, not read."""

    folder: Path
    base: str
    """The model that it was made for, as it was called there."""
    rank: int
    scale: float
    file: TensorFile

    @property
    def identity(self) -> str:
        """All that it adds to a model, beside the bytes of its file."""
        return f"LoRA, scale {self.scale!r}"

    def merged(self, tensors: TensorTable) -> TensorTable:
        """``tensors`` with what stands for those that it changes. Raises ModelError naming the
        tensor that has no place."""
        found: dict[str, TensorInfo] = {x.name: x for x in tensors.listing()}
        own, placed = self.file.tensors, set[str]()
        for down_end, up_end in ((_DOWN, _UP), (_DOWN_ROWS, _UP_ROWS)):
            for name in [x for x in own if x.endswith(down_end)]:
                up = name.removesuffix(down_end) + up_end
                if up not in own:
                    raise self._error(f"tensor '{name}' has no '{up}' beside it")
                weight = self._weight(name.removesuffix(down_end), tensors)
                if isinstance(found[weight].module, Merged):
                    raise self._error(f"more than one of its modules is '{weight}'")
                made = Merged(
                    tensors[weight], own[name], own[up], self.scale, down_end == _DOWN_ROWS
                )
                self._check(made)
                found[weight] = TensorInfo(weight, "F32", made.plain.shape, memoryview(b""), made)
                placed |= {name, up}
        left = sorted(set(own) - placed)
        if left or not placed:
            raise self._error(f"tensor '{left[0]}' is no part of LoRA" if left else "it is empty")
        return TensorTable(found)

    def _weight(self, module: str, tensors: TensorTable) -> str:
        """The tensor of a module of the model, which one or the other may call by a longer name."""
        name = f"{module.removeprefix(_BEFORE)}.weight"
        if name in tensors:
            return name
        fits = [x for x in tensors if x.endswith(f".{name}") or name.endswith(f".{x}")]
        if len(fits) != 1:
            what = "none" if not fits else f"{len(fits)}"
            raise self._error(f"of '{name}' the model has {what}: is it made for this one?")
        return fits[0]

    def _check(self, made: Merged) -> None:
        plain, (down, up) = made.plain, (made.down.shape, made.up.shape)
        formats = {x.format for x in made.tensors}
        if plain.module is not None or not formats <= set(_PLAIN):
            raise self._error(
                f"tensor '{plain.name}' is {plain.format}: adapters are merged into weights of "
                f"{', '.join(_PLAIN)}, take the model before it was quantized"
            )
        n, k = (0, 0) if len(plain.shape) != 2 else plain.shape
        inner, outer = (n, k) if made.of_rows else (k, n)
        if (down, up) != ((self.rank, inner), (outer, self.rank)):
            raise self._error(
                f"tensor '{made.up.name}' is {list(up)} beside {list(down)}, expected rank "
                f"{self.rank} and sizes of '{plain.name}', {list(plain.shape)}"
            )

    def _error(self, what: str) -> ModelError:
        return ModelError(f"{self.folder}: {what}", code="model_tensors")


def has_adapter(folder: Path) -> bool:
    """Whether it is an adapter's, and no model's."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def open_adapter(folder: Path) -> Adapter:
    """Raises ModelError on what is more than LoRA, by its field."""
    said, where = read_object(folder / CONFIG, _MAX_CONFIG), f"{folder / CONFIG}"
    for name, value in sorted(said.items()):
        allowed = _NEUTRAL.get(name, ())
        if name in _HARMLESS or not value or value in allowed:
            continue
        expected = f"expected {' or '.join(map(str, allowed))}" if allowed else "is not computed"
        raise ModelError(f"{where}: {name} = {value!r}: {expected}", code="unsupported_model")
    rank, alpha, base = said.get("r"), said.get("lora_alpha"), said.get("base_model_name_or_path")
    if type(rank) is not int or not 0 < rank <= _MAX_RANK:
        raise ModelError(f"{where}: r is {rank!r}, expected a rank of 1 to {_MAX_RANK}")
    if (
        not isinstance(alpha, int | float)
        or isinstance(alpha, bool)
        or not -_MAX_ALPHA <= alpha <= _MAX_ALPHA
    ):
        raise ModelError(f"{where}: lora_alpha is {str(alpha)[:80]!r}, expected a number")
    of_root = said.get("use_rslora", False)
    if not isinstance(of_root, bool | None):
        raise ModelError(f"{where}: use_rslora is {of_root!r}, expected true or false")
    divisor = sqrt(rank) if of_root else rank
    if not (folder / WEIGHTS).exists() and (folder / _PICKLED).exists():
        refuse_pickle(folder / _PICKLED)
    file = open_safetensors(folder / WEIGHTS)
    name = printable(base) if isinstance(base, str) else ""
    return Adapter(folder, name, rank, float(alpha) / divisor, file)


def base_folder(adapter: Adapter) -> Path | None:
    """The model's folder, where that is the one around it or what the adapter names is a folder."""
    around = adapter.folder.resolve().parent
    named = (Path(adapter.base),) if adapter.base else ()  # a path of nothing is where we are
    return next((x for x in (around, *named) if isfile(x / "config.json")), None)
