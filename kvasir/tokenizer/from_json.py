"""Tokenizers of Hugging Face folders: tokenizer.json and the settings beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import tokenizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.tokenizer import MAX_IDS, PieceStyle, TokenizerSpec, is_library_error
from kvasir.weights.source import ModelSource

_MAX_TOKENIZER = 64 << 20
"""Bytes; the largest known has 33 MB. Bounds vocabulary and merges as well."""
_HUGE = re.compile(rb'":\s*\d{8}')
"""A number that may be an id for which the library would fill gigabytes. Looking for it takes 10 ms
where the ids themselves take 100."""


def spec_from_folder(source: ModelSource) -> TokenizerSpec:
    """Build the tokenizer of an HF folder. Raises ModelError naming the file and field."""
    path = source.path / "tokenizer.json"
    data = source.read("tokenizer.json", _MAX_TOKENIZER)
    if data is None:
        raise ModelError(
            f"{path} is missing: download it beside config.json", code="model_not_found"
        )
    try:
        backend = tokenizers.Tokenizer.from_buffer(data)
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise ModelError(f"{path} is not a tokenizer: {error}") from None
    if _HUGE.search(data) and max(backend.get_vocab().values(), default=0) >= MAX_IDS:
        raise ModelError(f"{path}: vocab has the id {max(backend.get_vocab().values())}, too high")
    style, strip_space = _decoder_style(str(path), backend)
    added = backend.get_added_tokens_decoder()
    settings = source.read_json("tokenizer_config.json")
    return TokenizerSpec(
        backend=backend,
        style=style,
        strip_space=strip_space,
        added_ids=frozenset(added),
        special_ids=frozenset(i for i, token in added.items() if token.special),
        bos_id=_bos_id(source, backend, settings),
        eos_ids=_end_ids(source, backend, settings),
        n_embeddings=source.n_embeddings,
    )


def _named_id(
    source: ModelSource, backend: tokenizers.Tokenizer, settings: Mapping[str, object], field: str
) -> int | None:
    """tokenizer_config.json writes a token as its name, or as an object with ``content``."""
    value = settings.get(field)
    if value is None:
        return None
    name = value.get("content") if isinstance(value, Mapping) else value
    where = f"{source.path / 'tokenizer_config.json'}: {field}"
    if not isinstance(name, str):
        raise ModelError(f"{where} is {str(value)[:80]}, expected the name of a token")
    found = backend.token_to_id(name)
    if found is None:
        raise ModelError(f"{where} is {name[:80]!r}, which tokenizer.json does not have")
    return _checked(source, where, found)


def _bos_id(
    source: ModelSource, backend: tokenizers.Tokenizer, settings: Mapping[str, object]
) -> int | None:
    named = _named_id(source, backend, settings, "bos_token")
    listed = source.config.get("bos_token_id")
    if named is not None or listed is None:
        return named
    return _checked(source, f"{source.path / 'config.json'}: bos_token_id", listed)


def _end_ids(
    source: ModelSource, backend: tokenizers.Tokenizer, settings: Mapping[str, object]
) -> tuple[int, ...]:
    """The tokenizer's own end token, then generation_config.json's (or else config.json's)."""
    own = _named_id(source, backend, settings, "eos_token")
    file = "generation_config.json"
    listed = source.read_json(file).get("eos_token_id")
    if listed is None:
        file, listed = "config.json", source.config.get("eos_token_id")
    ids = [] if listed is None else listed if isinstance(listed, list) else [listed]
    where = f"{source.path / file}: eos_token_id"
    ends = [_checked(source, where, i) for i in ids]
    return tuple(dict.fromkeys(([own] if own is not None else []) + ends))


def _checked(source: ModelSource, where: str, token_id: object) -> int:
    n = source.n_embeddings or MAX_IDS
    if type(token_id) is not int or not 0 <= token_id < n:
        raise ModelError(f"{where} is {str(token_id)[:80]}, the model has the ids 0 to {n - 1}")
    return token_id


def _decoder_style(path: str, backend: tokenizers.Tokenizer) -> tuple[PieceStyle, bool]:
    """How tokens spell bytes, and whether a leading space is dropped."""
    if backend.decoder is None:
        raise ModelError(f"{path}: decoder is missing")
    decoder = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return "byte_level", False
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return "metaspace", any(_strips(step) for step in steps)
    raise ModelError(
        f"{path}: decoder {sorted(kinds)} is not supported "
        "(supported: ByteLevel, and SentencePiece's)",
        code="unsupported_tokenizer",
    )


def _strips(step: Mapping[str, object]) -> bool:
    if step["type"] == "Strip":
        return step["content"] == " " and step["start"] == 1
    return step["type"] == "Metaspace" and step.get("prepend_scheme") != "never"
