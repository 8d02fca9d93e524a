"""Formats that a model's linears could have: what each is called, what it makes of the file, and
how one comes by it."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

import msgspec

from kvasir.core.errors import ConfigError, ModelError
from kvasir.formats.types import FORMATS
from kvasir.models.loaded import LoadedModel
from kvasir.quantize.blocks import BLOCK_FORMATS, Blocks
from kvasir.quantize.choose import PLAIN, choose, linear_tensors
from kvasir.quantize.compressed import FolderMethod, Fp8Rows, Groups, Int8Rows
from kvasir.quantize.gptq import GptqGroups

AS_IT_IS = "as it is"
_GROUPS = (128, 64, 32)
_ROW = "Q4C"
"""What 4-bit groups as long as their rows are."""
_GGUF = ("Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_XS", "Q3_K", "Q2_K")
"""What files of a model are commonly there in, the largest first."""

Method = FolderMethod | Blocks


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
    missing: str = ""
    """Why this model cannot have it; empty: it can."""


def candidates(model: LoadedModel) -> list[Candidate]:
    """As it is, and what could be made or fetched, the largest first. Raises ModelError where the
    model has no linears of rows that a format takes."""
    names = [x for x in linear_tensors(model) if model.source.tensors[x].shape[-1] % 32 == 0]
    if not names:
        raise ModelError(f"{model.source.path}: no linear has rows of a multiple of 32 elements")
    n_bytes = sum(info.n_bytes for info in model.source.tensors.listing())
    found = [Candidate(AS_IT_IS, {}, n_bytes)]
    stored = {model.source.tensors[x].format for x in names}
    is_plain = all(x.format in PLAIN for x in model.source.tensors.listing() if len(x.shape) > 1)
    if model.source.kind == "gguf":
        found += [_block(model, names, x, is_plain) for x in _GGUF if {x} != stored]
    elif is_plain:
        found += _folder(model)
    return sorted(found, key=lambda x: -x.n_bytes)


def _folder(model: LoadedModel) -> list[Candidate]:
    names = choose(model, with_head=False).quantized
    widths = {model.source.tensors[x].shape[-1] for x in names}
    group = next((x for x in _GROUPS if not any(k % x for k in widths)), None)
    made: list[tuple[str, Method, str, str]] = [
        ("int8", Int8Rows(), "Q8C", "--method int8"),
        ("fp8", Fp8Rows(), "F8C", "--method fp8"),
    ]
    if group is not None:
        options = f"--group-size {group}"
        grouped = f"QG4_{group}"
        made += [
            ("gptq 4 bits", GptqGroups(4, group, True), grouped, f"--method gptq {options}"),
            ("rtn 4 bits", Groups(4, group, True), grouped, f"--method rtn {options}"),
        ]
    return [
        Candidate(
            name,
            {
                x: _ROW if form == f"QG4_{model.source.tensors[x].shape[-1]}" else form
                for x in names
            },
            _bytes_with(model, names, method),
            method,
            f"kvasir quantize {quote(str(model.source.path))} {how} --output NEW",
        )
        for name, method, form, how in made
    ]


def _bytes_with(model: LoadedModel, names: tuple[str, ...], method: Method) -> int:
    """Of all tensors, as ``quantize`` will write them."""
    chosen = set(names)
    return sum(
        sum(x.n_bytes for x in method.targets(info.name, info.shape))
        if info.name in chosen
        else info.n_bytes
        for info in model.source.tensors.listing()
    )


def _block(model: LoadedModel, names: list[str], form: str, is_plain: bool) -> Candidate:
    block, table = FORMATS[form].block, model.source.tensors
    narrow = next((x for x in names if table[x].shape[-1] % block), None)
    if narrow is not None:
        width = table[narrow].shape[-1]
        why = f"rows of {narrow} have {width} elements, no multiple of its {block}"
        return Candidate(form, {}, 0, missing=why)
    sizes = {x: FORMATS[form].n_bytes(table[x].shape) for x in names}
    n_bytes = sum(sizes.get(x.name, x.n_bytes) for x in table.listing())
    method = Blocks(form) if is_plain and form in BLOCK_FORMATS else None
    command = f"a {form} file of the model"
    if method is not None:
        path = quote(str(model.source.path))
        command = f"kvasir quantize {path} --method gguf:{form} --output NEW.gguf"
    return Candidate(form, dict.fromkeys(names, form), n_bytes, method, command)


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
