"""Tokenizers of Hugging Face folders: tokenizer.json and the settings beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import tokenizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.tokenizer import PieceStyle, TokenizerSpec
from kvasir.weights.source import ModelSource

_MAX_TOKENIZER = 64 << 20
"""Bytes; the largest known has 33 MB. Bounds vocabulary and merges as well."""


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
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} is not a tokenizer: {error}") from None
    style, strip_space = _decoder_style(str(path), backend)
    added = backend.get_added_tokens_decoder()
    settings = source.read_json("tokenizer_config.json")
    return TokenizerSpec(
        backend=backend,
        style=style,
        strip_space=strip_space,
        added_ids=frozenset(added),
        special_ids=frozenset(i for i, token in added.items() if token.special),
        bos_id=_named_id(backend, settings.get("bos_token"), source.config.get("bos_token_id")),
        eos_ids=_end_ids(source, backend, settings),
    )


def token_name(value: object) -> str | None:
    """tokenizer_config.json writes a token as its name, or as an object with ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _named_id(backend: tokenizers.Tokenizer, token: object, fallback: object) -> int | None:
    name = token_name(token)
    if name is not None:
        return backend.token_to_id(name)
    return fallback if type(fallback) is int else None


def _end_ids(
    source: ModelSource, backend: tokenizers.Tokenizer, settings: Mapping[str, object]
) -> tuple[int, ...]:
    """The tokenizer's own end token, then generation_config.json's (or else config.json's)."""
    own = _named_id(backend, settings.get("eos_token"), None)
    listed = source.read_json("generation_config.json").get("eos_token_id")
    if listed is None:
        listed = source.config.get("eos_token_id")
    ids = [] if listed is None else listed if isinstance(listed, list) else [listed]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise ModelError(
            f"{source.path}: eos_token_id is {listed!r}, expected an id or a list of ids"
        )
    return tuple(dict.fromkeys(([own] if own is not None else []) + ids))


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
