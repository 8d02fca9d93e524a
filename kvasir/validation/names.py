"""What the sender of a request calls the fields that an error may name."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Names(msgspec.Struct, frozen=True):
    prompt: str = "prompt"
    max_tokens: str | None = "max_tokens"
    """None when it was not sent: a default is checked then."""
    logprobs: str = "logprobs"
    scoring: str | None = "prompt_logprobs"
    """What asks for logprobs of the prompt, so that ``max_tokens`` may be 0; None: nothing can."""

    others: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Of other fields of ``SamplingParams``, where they differ."""

    def of(self, name: str) -> str:
        """What the sender calls a field of ``SamplingParams``."""
        return self.logprobs if name == "logprobs" else self.others.get(name, name)


OWN = Names()
"""Those of ``SamplingParams``."""
