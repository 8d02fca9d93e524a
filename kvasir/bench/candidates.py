"""Formats that a model's linears could have: what each is called, what it makes of the file, and
how one comes by it."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

import msgspec

from kvasir.checkpoints.loaded import LoadedModel
from kvasir.core.errors import ConfigError, ModelError
from kvasir.formats.types import FORMATS
from kvasir.quantize.choose import PLAIN, Selection, choose, linear_tensors
from kvasir.quantize.methods import method_named
from kvasir.quantize.mixtures import GgufMethod
from kvasir.quantize.quantize import Method
from kvasir.quantize.repack import Repack
from kvasir.quantize.target import FolderMethod

AS_IT_IS = "as it is"
_GROUPS = (128, 64, 32)
_ROW = "Q4C"
"""What 4-bit groups as long as their rows are."""
_ROWS = {"int8": "Q8C", "smoothquant": "Q8C", "fp8": "F8C", "mxfp4": "MXFP4"}
_GROUPED = ("gptq", "awq", "rtn")
"""The nearest to the model first."""
_GGUF = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_1", "Q4_K_M", "Q4_K_S", "Q4_0", "Q3_K_M", "Q2_K")


class Candidate(msgspec.Struct, frozen=True):
    name: str
    formats: Mapping[str, str]
    """Of the tensors that are stored otherwise than they are now."""
    n_bytes: int
    """Of all tensors, in the file."""
    method: Method | None = None
    """That makes it, where Kvasir does."""
    command: str = ""
    """How one comes by it; empty: it is there."""


def candidates(model: LoadedModel) -> list[Candidate]:
    """As it is, and what could be made or fetched, the largest first. Raises ModelError where the
    model has no linears of rows that a format takes."""
    table = model.source.tensors
    names = tuple(x for x in linear_tensors(model) if table[x].shape[-1] % 32 == 0)
    if not names:
        raise ModelError(f"{model.source.path}: no linear has rows of a multiple of 32 elements")
    found = [Candidate(AS_IT_IS, {}, sum(info.n_bytes for info in table.listing()))]
    is_plain = all(x.format in PLAIN for x in table.listing() if len(x.shape) > 1)
    if model.source.kind == "gguf":
        mixtures = (_mixture(model, names, x, is_plain) for x in _GGUF)
        found += [x for x in mixtures if x.formats]
    elif is_plain:
        found += _folder(model)
    return sorted(found, key=lambda x: -x.n_bytes)


def _folder(model: LoadedModel) -> list[Candidate]:
    names = choose(model, with_head=False).quantized
    widths = {model.source.tensors[x].shape[-1] for x in names}
    group = next((x for x in _GROUPS if not any(k % x for k in widths)), None)
    made = [_rows(model, names, name) for name in _ROWS]
    return made if group is None else made + [_grouped(model, names, x, group) for x in _GROUPED]


def _rows(model: LoadedModel, names: tuple[str, ...], name: str) -> Candidate:
    method = method_named(name, None, None, None)
    assert not isinstance(method, GgufMethod | Repack)
    n_bytes, command = _bytes_with(model, names, method), _command(model, f"--method {name}")
    return Candidate(name, dict.fromkeys(names, _ROWS[name]), n_bytes, method, command)


def _grouped(model: LoadedModel, names: tuple[str, ...], name: str, group: int) -> Candidate:
    method = method_named(name, 4, group, True)
    assert not isinstance(method, GgufMethod | Repack)
    widths = {x: model.source.tensors[x].shape[-1] for x in names}
    formats = {x: _ROW if k == group else f"QG4_{group}" for x, k in widths.items()}
    command = _command(model, f"--method {name} --group-size {group}")
    return Candidate(f"{name} 4 bits", formats, _bytes_with(model, names, method), method, command)


def _command(model: LoadedModel, how: str, output: str = "NEW") -> str:
    return f"kvasir quantize {quote(str(model.source.path))} {how} --output {output}"


def _bytes_with(model: LoadedModel, names: tuple[str, ...], method: FolderMethod) -> int:
    """Of all tensors, as ``quantize`` will write them."""
    chosen = set(names)
    return sum(
        sum(x.n_bytes for x in method.targets(info.name, info.shape))
        if info.name in chosen
        else info.n_bytes
        for info in model.source.tensors.listing()
    )


def _mixture(model: LoadedModel, names: tuple[str, ...], recipe: str, is_plain: bool) -> Candidate:
    """Without formats where the model is one already."""
    method, table = GgufMethod(recipe), model.source.tensors
    wanted = method.formats(model.source, Selection(names, (), ()))
    formats = {x: form for x, form in wanted.items() if table[x].format != form}
    sizes = {x: FORMATS[form].n_bytes(table[x].shape) for x, form in formats.items()}
    n_bytes = sum(sizes.get(x.name, x.n_bytes) for x in table.listing())
    if not is_plain:
        return Candidate(recipe, formats, n_bytes, None, f"a {recipe} file of the model")
    command = _command(model, f"--method gguf:{recipe}", "NEW.gguf")
    return Candidate(recipe, formats, n_bytes, method, command)


def named(found: list[Candidate], wanted: str | None) -> list[Candidate]:
    """Those of ``wanted``, a list with commas, and the model as it is. Raises ConfigError."""
    if wanted is None:
        return found
    words = [x.strip().lower() for x in wanted.split(",") if x.strip()]
    names = {x.name.lower() for x in found}
    unknown = next((x for x in words if not any(name.startswith(x) for name in names)), None)
    if unknown is not None:
        raise ConfigError(f"--formats names {unknown}: this model has {', '.join(sorted(names))}")
    return [
        x
        for x in found
        if x.name == AS_IT_IS or any(x.name.lower().startswith(word) for word in words)
    ]
