"""Methods by their names, and what is said of those that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kvasir.core.errors import ConfigError
from kvasir.quantize.compressed import Fp8Rows, Int8Rows
from kvasir.quantize.containers import CONTAINERS, PACK_QUANTIZED, Container
from kvasir.quantize.fp8_blocks import Fp8Blocks
from kvasir.quantize.gptq import GptqGroups
from kvasir.quantize.groups import Groups
from kvasir.quantize.mixtures import RECIPES, GgufMethod, read_override
from kvasir.quantize.mxfp4 import Mxfp4Rows
from kvasir.quantize.nf4 import Nf4Rows
from kvasir.quantize.nvfp4 import Nvfp4Rows
from kvasir.quantize.repack import Repack
from kvasir.quantize.scaling import AwqGroups, SmoothInt8
from kvasir.quantize.target import FolderMethod

METHODS = (
    "rtn",
    "gptq",
    "awq",
    "int8",
    "smoothquant",
    "fp8",
    "fp8-block",
    "nf4",
    "nvfp4",
    "mxfp4",
    "repack",
    *(f"gguf:{name}" for name in RECIPES),
)
BITS = (4, 8)
_DEFAULT_GROUP = 128
_DEFAULT_BITS = 4
_GROUPED: Mapping[str, type[Groups]] = MappingProxyType(
    {"rtn": Groups, "gptq": GptqGroups, "awq": AwqGroups}
)
_ROWS: Mapping[str, FolderMethod] = MappingProxyType(
    {
        "int8": Int8Rows(),
        "smoothquant": SmoothInt8(),
        "fp8": Fp8Rows(),
        "fp8-block": Fp8Blocks(),
        "nf4": Nf4Rows(),
        "nvfp4": Nvfp4Rows(),
        "mxfp4": Mxfp4Rows(),
    }
)


def method_named(
    name: str,
    bits: int | None,
    group: int | None,
    is_symmetric: bool | None,
    tensor_types: Sequence[str] = (),
    container: str | None = None,
) -> FolderMethod | GgufMethod | Repack:
    """``tensor_types``: of GGUF files, parts of names and formats. Raises ConfigError for a method
    that is none, and for options that it does not have."""
    if tensor_types and not name.startswith("gguf:"):
        raise ConfigError(f"--tensor-type is an option of gguf: {name} has one form")
    if name in _GROUPED:
        return _grouped(name, bits, group, is_symmetric, container)
    if name not in METHODS:
        raise ConfigError(f"--method is {name!r}: {_reason(name)}{', '.join(METHODS)} are made")
    options: dict[str, object] = {"--bits": bits, "--group-size": group, "--sym": is_symmetric}
    options["--container"] = None if name == "repack" else container
    said = [option for option, value in options.items() if value is not None]
    if said:
        raise ConfigError(
            f"{said[0]} is an option of {', '.join(_GROUPED)}: {name} has one form, leave it out"
        )
    if name == "repack":
        return Repack(_container(container))
    if name in _ROWS:
        return _ROWS[name]
    return GgufMethod(name.removeprefix("gguf:"), tuple(map(read_override, tensor_types)))


def _grouped(
    name: str, bits: int | None, group: int | None, is_symmetric: bool | None, container: str | None
) -> Groups:
    found = _GROUPED[name](
        bits or _DEFAULT_BITS,
        group or _DEFAULT_GROUP,
        is_symmetric is not False,
        _container(container),
    )
    if found.bits not in BITS:
        raise ConfigError(f"--bits is {found.bits}: {name} makes {BITS[0]} or {BITS[1]}")
    if found.group % 32 or found.group < 32:
        raise ConfigError(f"--group-size is {found.group}: expected a multiple of 32")
    return found


def _container(name: str | None) -> Container:
    place = name or PACK_QUANTIZED.name
    if place not in CONTAINERS:
        raise ConfigError(f"--container is {place!r}: {', '.join(CONTAINERS)} are written")
    return CONTAINERS[place]


def _reason(name: str) -> str:
    if name.lower() == "fp4":
        return "it is read and not made; "
    if name.lower().startswith("gguf:"):
        return "formats of codebooks (IQ) are read and not made; "
    return ""
