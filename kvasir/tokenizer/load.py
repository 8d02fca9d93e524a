"""The tokenizer of a model."""

from __future__ import annotations

from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import ModelSource


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Build the tokenizer of ``source``.

    Raises ModelError naming file and field when it is missing, corrupt or unsupported, and when it
    ends, begins or surrounds texts with ids that the model does not have.
    """
    # A process reads one of both kinds: the other would take some of the time until it answers.
    with source.named_errors():
        if source.kind == "gguf":
            from kvasir.tokenizer.from_gguf import spec_from_gguf

            return Tokenizer(spec_from_gguf(source.config, source.n_embeddings))
        from kvasir.tokenizer.from_folder import spec_from_folder

        return Tokenizer(spec_from_folder(source))
