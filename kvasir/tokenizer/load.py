"""The tokenizer of a model."""

from __future__ import annotations

from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.from_json import spec_from_folder
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import ModelSource


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Build the tokenizer of ``source``. Raises ModelError when missing, corrupt or unsupported."""
    spec = spec_from_gguf(source.config) if source.kind == "gguf" else spec_from_folder(source)
    return Tokenizer(spec)
