"""A request, as far as time-keeping looks at it."""

from __future__ import annotations

from typing import Protocol

from kvasir.core.params import TokenParams
from kvasir.core.request import Standing


class Timed(Protocol):
    """The words are those of ``sched.request``."""

    id: int
    params: TokenParams
    n_prompt: int
    n_computed: int
    n_drawn: int
    max_outputs: int
    slot: int
    finish: str | None

    @property
    def arrival(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def standing(self) -> Standing: ...

    @property
    def n_known(self) -> int: ...

    @property
    def n_outputs(self) -> int: ...
