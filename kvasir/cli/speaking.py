"""A model that a conversation is held with, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvasir.cli.images import Message
from kvasir.validation.sampling import SamplingParams


@dataclass
class LastAnswer:
    """What is known of the newest answer."""

    id: str = ""
    """As the server calls it; empty: of this process."""
    n_prompt: int = 0
    n_cached: int = 0
    """Prompt tokens that were not computed."""
    n_tokens: int = 0
    """Of the answer, so far."""


class Speaker(Protocol):
    """A model, wherever it runs."""

    name: str
    last: LastAnswer

    def chat(self, messages: Sequence[Message], params: SamplingParams) -> Iterator[str]: ...

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that ``messages`` are."""
        ...

    def why(self) -> dict[str, Any]:
        """Where the time of the newest answer went, as a server's route has it. Raises
        KvasirError where nobody knows."""
        ...

    def close(self) -> None: ...
