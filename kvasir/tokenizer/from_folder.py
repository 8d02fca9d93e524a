"""The tokenizer of a Hugging Face folder, whichever file describes it."""

from __future__ import annotations

from collections.abc import Callable

from kvasir.core.errors import ModelError
from kvasir.tokenizer.from_json import spec_from_json
from kvasir.tokenizer.from_pieces import spec_from_pieces
from kvasir.tokenizer.tekken import spec_from_tekken
from kvasir.tokenizer.tiktoken import PATTERNS, is_tiktoken, spec_from_tiktoken
from kvasir.tokenizer.tokenizer import TokenizerSpec
from kvasir.weights.source import ModelSource

_MAX_TOKENIZER = 64 << 20
"""Bytes; the largest known has 33 MB. Bounds vocabulary and merges as well."""

Reader = Callable[[ModelSource, str, bytes], TokenizerSpec]


def _read_model(source: ModelSource, name: str, data: bytes) -> TokenizerSpec:
    """Two kinds of files have that name."""
    return (spec_from_tiktoken if is_tiktoken(data) else spec_from_pieces)(source, name, data)


_READERS: dict[str, Reader] = {
    "tokenizer.json": spec_from_json,
    "tekken.json": spec_from_tekken,
    **dict.fromkeys(PATTERNS, spec_from_tiktoken),
    "tokenizer.model": _read_model,
}


def spec_from_folder(source: ModelSource) -> TokenizerSpec:
    """Of the first file that is there. Raises ModelError naming the file and field."""
    for name, read in _READERS.items():
        data = source.read(name, _MAX_TOKENIZER)
        if data is not None:
            return read(source, name, data)
    raise ModelError(
        f"{source.path / 'tokenizer.json'} is missing: download it beside config.json "
        f"(or one of {', '.join(list(_READERS)[1:])})",
        code="model_not_found",
    )
