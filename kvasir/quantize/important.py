"""What columns of a GGUF file's tensors meet, which says how much their errors count."""

from __future__ import annotations

from kvasir.quantize.statistics import ByText, Vector


class Important(ByText):
    def squares(self, tensor: str) -> Vector | None:
        """Means of squares of its inputs."""
        inputs = self.statistics.inputs(tensor)
        return None if inputs is None else inputs.squares
