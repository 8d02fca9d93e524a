"""The tokenizer of a model."""

from __future__ import annotations

from kvasir.tokenizer.from_folder import spec_from_folder
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import ModelSource


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Build the tokenizer of ``source``.

    Raises ModelError naming file and field when it is missing, corrupt or unsupported, and when it
    ends, begins or surrounds texts with ids that the model does not have.
    """
    with source.named_errors():
        if source.kind == "gguf":
            return Tokenizer(spec_from_gguf(source.config, source.n_embeddings))
        return Tokenizer(spec_from_folder(source))
