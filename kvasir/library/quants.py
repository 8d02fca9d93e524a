"""Which GGUF file of a repository: the quantizations that there are, and which one is taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

import msgspec

from kvasir.config.sizes import format_size
from kvasir.core.errors import ModelError

PREFERRED = "Q4_K_M"
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|FP16|F32))$",
    re.IGNORECASE,
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_BESIDE = re.compile(r"mmproj|imatrix", re.IGNORECASE)
"""Files that are no models of their own."""


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository."""

    name: str
    n_bytes: int
    digest: str
    """As ``StoredFile.digest``."""


class Quant(msgspec.Struct, frozen=True):
    tag: str
    file: HubFile
    """The first of several."""
    n_bytes: int
    n_files: int = 1


class Fit(msgspec.Struct, frozen=True):
    """What a model would be on this machine."""

    refusal: str = ""
    """Why it would not start; empty: it would."""
    n_tokens: int = 0
    """That its KV blocks would hold."""
    max_model_len: int = 0
    tokens_per_second: float | None = None
    """About, of one request; None: unknown."""


Fits = Mapping[str, Fit]
"""By tag."""
Judge = Callable[[Sequence[Quant]], Fits]


def quants(files: Sequence[HubFile]) -> list[Quant]:
    """One for each GGUF model among ``files``, the smallest first."""
    found: dict[str, list[HubFile]] = {}
    for file in files:
        path = PurePosixPath(file.name)
        if path.suffix.lower() == ".gguf" and not _BESIDE.search(path.name):
            found.setdefault(_SHARD.sub("", str(path.with_suffix(""))), []).append(file)
    made = []
    for stem, parts in found.items():
        parts = sorted(parts, key=lambda file: file.name)
        made.append(Quant(_tag(stem), parts[0], sum(x.n_bytes for x in parts), len(parts)))
    return sorted(made, key=lambda quant: (quant.n_bytes, quant.tag))


def _tag(stem: str) -> str:
    """The words at its end that name a quantization, in upper case; else its last part."""
    name = PurePosixPath(stem)
    said = _QUANT.search(name.name) or _QUANT.search(str(name.parent))
    return said[1].upper() if said else name.name


def tagged(found: Sequence[Quant], tag: str, repo: str) -> Quant:
    """The one called ``tag``, which may be a file's name. Raises ModelError that lists them."""
    said = tag.lower()
    for quant in found:
        names = (quant.tag.lower(), quant.file.name.lower(), f"{quant.tag.lower()}.gguf")
        if said in names or said == PurePosixPath(quant.file.name).name.lower():
            return quant
    raise ModelError(f"{repo} has no {tag}; it has {listed(found)}", code="model_not_found")


def listed(found: Sequence[Quant]) -> str:
    return ", ".join(f"{quant.tag} ({format_size(quant.n_bytes)})" for quant in found)


def chosen(found: Sequence[Quant], fits: Fits, repo: str) -> Quant:
    """Q4_K_M where it fits, else the largest that does. Raises ModelError where none does."""
    able = [x for x in found if x.n_files == 1 and not fits.get(x.tag, Fit()).refusal]
    preferred = next((x for x in able if x.tag == PREFERRED), None)
    if preferred is not None:
        return preferred
    if able:
        return able[-1]
    why = fits[found[0].tag].refusal if found[0].tag in fits else "it is in several files"
    raise ModelError(
        f"nothing of {repo} would start here. The smallest, {found[0].tag} "
        f"({format_size(found[0].n_bytes)}): {why}. --force fetches one all the same",
        code="model_does_not_fit",
    )
