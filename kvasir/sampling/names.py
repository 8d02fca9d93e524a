"""What the sender of a request calls the fields that an error may name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    prompt: str = "prompt"
    max_tokens: str | None = "max_tokens"
    """None when it was not sent: a default is checked then."""
    logprobs: str = "logprobs"
    scoring: str | None = "prompt_logprobs"
    """What asks for logprobs of the prompt, so that ``max_tokens`` may be 0; None: nothing can."""

    def of(self, field: str) -> str:
        """The name of a field of ``SamplingParams``."""
        return self.logprobs if field == "logprobs" else field


OWN = Names()
"""Those of ``SamplingParams``."""
