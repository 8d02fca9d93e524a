"""Methods by their names, and what is said of those that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kvasir.core.errors import ConfigError
from kvasir.quantize.compressed import Fp8Rows, Groups, Int8Rows
from kvasir.quantize.folder import FolderMethod
from kvasir.quantize.gptq import GptqGroups
from kvasir.quantize.mixtures import RECIPES, GgufMethod, read_override
from kvasir.quantize.mxfp4 import Mxfp4Rows
from kvasir.quantize.scaling import AwqGroups, SmoothInt8

METHODS = (
    "rtn",
    "gptq",
    "awq",
    "int8",
    "smoothquant",
    "fp8",
    "mxfp4",
    *(f"gguf:{name}" for name in RECIPES),
)
BITS = (4, 8)
_DEFAULT_GROUP = 128
_DEFAULT_BITS = 4
_GROUPED: Mapping[str, type[Groups]] = MappingProxyType(
    {"rtn": Groups, "gptq": GptqGroups, "awq": AwqGroups}
)
_ROWS: Mapping[str, FolderMethod] = MappingProxyType(
    {"int8": Int8Rows(), "smoothquant": SmoothInt8(), "fp8": Fp8Rows(), "mxfp4": Mxfp4Rows()}
)
_FLOATS = ("nf4", "fp4", "nvfp4", "fp8-block")


def method_named(
    name: str,
    bits: int | None,
    group: int | None,
    is_symmetric: bool | None,
    tensor_types: Sequence[str] = (),
) -> FolderMethod | GgufMethod:
    """``tensor_types``: of GGUF files, parts of names and formats. Raises ConfigError for a method
    that is none, and for options that it does not have."""
    if tensor_types and not name.startswith("gguf:"):
        raise ConfigError(f"--tensor-type is an option of gguf: {name} has one form")
    if name in _GROUPED:
        found = _GROUPED[name](
            bits or _DEFAULT_BITS, group or _DEFAULT_GROUP, is_symmetric is not False
        )
        if found.bits not in BITS:
            raise ConfigError(f"--bits is {found.bits}: {name} makes {BITS[0]} or {BITS[1]}")
        if found.group % 32 or found.group < 32:
            raise ConfigError(f"--group-size is {found.group}: expected a multiple of 32")
        return found
    if name not in METHODS:
        raise ConfigError(f"--method is {name!r}: {_reason(name)}{', '.join(METHODS)} are made")
    options = {"--bits": bits, "--group-size": group, "--sym": is_symmetric}
    said = [option for option, value in options.items() if value is not None]
    if said:
        raise ConfigError(
            f"{said[0]} is an option of {', '.join(_GROUPED)}: {name} has one form, leave it out"
        )
    if name in _ROWS:
        return _ROWS[name]
    return GgufMethod(name.removeprefix("gguf:"), tuple(map(read_override, tensor_types)))


def _reason(name: str) -> str:
    word = name.lower()
    if word in _FLOATS:
        return "it is read and not made yet; "
    if word.startswith("gguf:"):
        return "formats of codebooks (IQ) are read and not made; "
    return ""
