"""How much a stream is for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvasir.core.errors import CapacityError
from kvasir.core.request import ALIKE, Standing

MAX_BYTES = 512 * 2**20
"""Of images and constraints of all requests that run or wait; the engine keeps them as well."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of what one stream is for."""

    n_requests: int
    n: int
    """Choices of each."""
    n_tokens: int
    """Of the prompts of all requests, each counted once."""
    standing: Standing = ALIKE
    n_bytes: int = 0
    """Of the pixels that go with them, and of their constraint."""

    @property
    def n_choices(self) -> int:
        return self.n_requests * self.n


def check_bytes(new: Size, others: Iterable[Size]) -> None:
    """Raises CapacityError (429) where what goes with ``new`` has no room beside ``others``."""
    n_bytes = sum(each.n_bytes for each in others) if new.n_bytes else 0
    if n_bytes and n_bytes + new.n_bytes > MAX_BYTES:
        raise CapacityError(
            f"images and grammars of {n_bytes >> 20} MB run or wait and {new.n_bytes >> 20} MB "
            f"more are sent, this server holds {MAX_BYTES >> 20}: try again later, or send smaller "
            "ones"
        )
