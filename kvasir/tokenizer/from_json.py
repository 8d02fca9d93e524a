"""tokenizer.json: the library reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import tokenizers

from kvasir.core.errors import ModelError
from kvasir.tokenizer.settings import FolderSettings
from kvasir.tokenizer.tokenizer import (
    CONTINUES,
    MAX_IDS,
    PieceStyle,
    TokenizerSpec,
    is_library_error,
)
from kvasir.weights.source import ModelSource

_HUGE = re.compile(rb'":\s*\d{8}')
"""A number that may be an id for which the library would fill gigabytes. Looking for it takes 10 ms
where the ids themselves take 100."""
_PIECE_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def spec_from_json(source: ModelSource, name: str, data: bytes) -> TokenizerSpec:
    """Build the tokenizer that ``data`` describes, the file ``name`` of a folder. Raises ModelError
    naming the file and field."""
    path = source.path / name
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
    settings = FolderSettings(source, backend.token_to_id, name)
    return TokenizerSpec(
        backend=backend,
        style=style,
        strip_space=strip_space,
        added_ids=frozenset(added),
        special_ids=frozenset(i for i, token in added.items() if token.special),
        bos_id=settings.bos_id(),
        eos_ids=settings.end_ids(),
        n_embeddings=source.n_embeddings,
    )


def _decoder_style(path: str, backend: tokenizers.Tokenizer) -> tuple[PieceStyle, bool]:
    """How tokens spell bytes, and whether a leading space is dropped."""
    if backend.decoder is None:
        raise ModelError(f"{path}: decoder is missing")
    decoder = json.loads(backend.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return "byte_level", False
    if kinds and kinds <= _PIECE_STEPS:
        return "metaspace", any(_strips(step) for step in steps)
    if kinds == {"WordPiece"} and decoder.get("prefix") == CONTINUES:
        return "word_piece", True
    raise ModelError(
        f"{path}: decoder {sorted(kinds)} is not supported "
        "(supported: ByteLevel, SentencePiece's, and WordPiece with ##)",
        code="unsupported_tokenizer",
    )


def _strips(step: Mapping[str, object]) -> bool:
    if step["type"] == "Strip":
        return step["content"] == " " and step["start"] == 1
    return step["type"] == "Metaspace" and step.get("prepend_scheme") != "never"
