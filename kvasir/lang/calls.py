"""What a program asks of a model and what comes back, whichever backend has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kvasir.lang.expressions import Role, Select
from kvasir.lang.stopping import Stop
from kvasir.validation.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one call."""

    n_prompt: int = 0
    """With those of the choices that are scored."""
    n_cached: int = 0
    """Those of them that were not computed for it."""
    n_output: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave."""

    text: str
    token_ids: tuple[int, ...] = ()
    """Empty where the backend tells none."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    counts: Counts = Counts()
    scores: tuple[float, ...] = ()
    """Of the choices, where they were scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """One call beside what the program said before it."""

    params: SamplingParams
    stop: Stop = field(default_factory=Stop)
    listen: Callable[[str], None] | None = None
    """Told each new text."""


class ProgramLine(Protocol):
    """What one branch of a program said so far: a value. Methods that compute wait, raise
    KvasirError when that fails, and what ``Stop`` raises."""

    @property
    def text(self) -> str: ...

    def said(self, text: str) -> ProgramLine:
        """Nothing is computed."""
        ...

    def opened(self, role: Role) -> ProgramLine:
        """A turn begins."""
        ...

    def closed(self) -> ProgramLine:
        """The turn ends."""
        ...

    def generate(self, calling: Calling) -> tuple[ProgramLine, Answer]: ...

    def select(self, select: Select, calling: Calling) -> tuple[ProgramLine, Answer]: ...

    def shared(self, stop: Stop) -> tuple[ProgramLine, Counts]:
        """Computed and kept as far as it goes: branches go on from it."""
        ...

    def close(self) -> None:
        """The program has ended: what is kept for it is given back. Of any of its lines, once."""
        ...


class ModelBackend(Protocol):
    """Where the model is. Any thread."""

    def begin(self) -> ProgramLine:
        """The line of a new program. Raises KvasirError."""
        ...
