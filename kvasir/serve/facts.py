"""What is told of a model's files to who asks for its card."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from kvasir.weights.source import ModelSource


class FileFacts(msgspec.Struct, frozen=True):
    format: str
    """gguf or safetensors."""
    family: str
    """As its config says it."""
    n_parameters: int
    n_bytes: int
    """Of its tensors."""
    quantization: str
    """The format of most of its bytes."""

    @property
    def size(self) -> str:
        """Such as 135M."""
        for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
            if self.n_parameters >= unit:
                return f"{self.n_parameters / unit:.3g}{name}"
        return str(self.n_parameters)


def facts_of(source: ModelSource) -> FileFacts:
    tensors = source.tensors.listing()
    formats: Counter[str] = Counter()
    for tensor in tensors:
        formats[tensor.format] += tensor.n_bytes
    key = "general.architecture" if source.kind == "gguf" else "model_type"
    return FileFacts(
        "gguf" if source.kind == "gguf" else "safetensors",
        str(source.config.get(key, "")),
        sum(math.prod(tensor.shape) for tensor in tensors),
        formats.total(),
        formats.most_common(1)[0][0] if formats else "",
    )
