"""From a ``quantization_config`` to the weights of its modules, as tensors by their plain names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from kvasir.core.errors import ModelError
from kvasir.formats.jsonfile import read_object
from kvasir.formats.mapped import TensorTable
from kvasir.formats.types import TensorInfo
from kvasir.weights.quantization.auto_round import read_auto_round
from kvasir.weights.quantization.awq import read_awq
from kvasir.weights.quantization.bitsandbytes import read_bitsandbytes
from kvasir.weights.quantization.compressed import read_compressed
from kvasir.weights.quantization.fields import UNQUANTIZED, QuantFields
from kvasir.weights.quantization.fp8 import read_fbgemm, read_fp8, read_modelopt
from kvasir.weights.quantization.gptq import read_gptq
from kvasir.weights.quantization.mxfp4 import read_mxfp4
from kvasir.weights.quantization.parts import Method
from kvasir.weights.quantization.refused import REFUSED

FIELD = "quantization_config"
_OLDER = "compression_config"
"""Its name in the first files of compressed-tensors."""
_MAX_CONFIG = 4 << 20
_BESIDE = (
    ("quantize_config.json", "gptq"),
    ("quant_config.json", "awq"),
    ("hf_quant_config.json", "modelopt"),
)
"""Files of older writers, and the method that they mean where they do not say one."""
_READERS: Mapping[str, Callable[[QuantFields], Method]] = MappingProxyType(
    {
        "gptq": read_gptq,
        "awq": read_awq,
        "auto-round": read_auto_round,
        "compressed-tensors": read_compressed,
        "fp8": read_fp8,
        "fbgemm_fp8": read_fbgemm,
        "modelopt": read_modelopt,
        "modelopt_fp4": read_modelopt,
        "bitsandbytes": read_bitsandbytes,
        "mxfp4": read_mxfp4,
    }
)
_SPELLINGS = {
    "intel/auto-round": "auto-round",
    "auto_round": "auto-round",
    "compressed_tensors": "compressed-tensors",
    "autoawq": "awq",
}


def with_quantization(folder: Path, config: Mapping[str, object]) -> Mapping[str, object]:
    """``config`` with the field, of its ``compression_config`` or ``text_config`` or of a file
    beside config.json where it lacks it."""
    text = config.get("text_config")
    inner = text.get(FIELD) if isinstance(text, dict) else None
    for found in (config.get(FIELD), config.get(_OLDER), inner):
        if found is not None:
            return {**config, FIELD: found}
    for name, method in _BESIDE:
        if (folder / name).is_file():
            said = read_object(folder / name, _MAX_CONFIG)
            inner = said.get("quantization", said)
            if not isinstance(inner, dict):
                raise ModelError(f"{folder / name}: quantization is not an object")
            return {**config, FIELD: {"quant_method": method, **inner}}
    return config


def method_of(config: Mapping[str, object], where: str) -> Method | None:
    """How modules of the checkpoint are stored; None where it is not quantized. Raises ModelError
    for what is not read, with field, value and remedy."""
    said = config.get(FIELD)
    if said is None:
        return None
    if not isinstance(said, dict):
        raise ModelError(f"{where}: {FIELD} is {str(said)[:80]!r}, expected an object")
    fields = QuantFields(said, f"{where}: {FIELD}")
    for field in ("quant_method", "checkpoint_format", "packing_format", "version", "format"):
        value = fields.raw(field)
        if isinstance(value, str) and value.lower() in REFUSED:
            raise _unread(fields, field, value, REFUSED[value.lower()])
    method = fields.raw("quant_method")
    name = str(method).lower()
    reader = _READERS.get(_SPELLINGS.get(name, name))
    if reader is None:
        raise _unread(fields, "quant_method", method, f"of those are read {', '.join(_READERS)}")
    return reader(fields)


def _unread(fields: QuantFields, field: str, value: object, why: str) -> ModelError:
    return ModelError(
        f"{fields.where}: {field} {str(value)[:80]!r} is not supported: {why}. Remedy: "
        f"{UNQUANTIZED}",
        code="unsupported_format",
    )


def with_modules(method: Method, table: TensorTable, where: str) -> TensorTable:
    """The weights of modules in place of what they are made of; others as they are. Reads no
    weight. Raises ModelError naming the module."""
    tensors: dict[str, TensorInfo] = {}
    modules: dict[str, dict[str, TensorInfo]] = {}
    ends = sorted((*method.ends, *method.unread), key=len, reverse=True)
    for info in table.listing():
        end = next((x for x in ends if info.name.endswith(method.joint + x)), None)
        if end is None:
            tensors[info.name] = info
        else:
            module = info.name[: -len(end) - len(method.joint)]
            modules.setdefault(module, {})[end] = info
    for module, parts in modules.items():
        made = _weight(method, module, parts, where)
        if made is None:
            plain = (info for end, info in parts.items() if end not in method.unread)
            tensors |= {info.name: info for info in plain}
        elif made.name in tensors:
            raise ModelError(
                f"{where}: module '{module}' has a weight that is quantized, and one that is not"
            )
        else:
            tensors[made.name] = made
    return TensorTable(tensors)


def _weight(
    method: Method, module: str, parts: Mapping[str, TensorInfo], where: str
) -> TensorInfo | None:
    try:
        return method.weight(module, parts)
    except ModelError as error:
        raise ModelError(f"{where}: {error.message}", code=error.code) from None
