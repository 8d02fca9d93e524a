"""How much a stream is for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvasir.core.errors import CapacityError
from kvasir.core.request import ALIKE, Standing

MAX_PIXEL_BYTES = 512 * 2**20
"""Of the images of all requests that run or wait; the engine keeps them as well."""


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
    """Of the pixels that go with them."""

    @property
    def n_choices(self) -> int:
        return self.n_requests * self.n


def check_pixels(new: Size, others: Iterable[Size]) -> None:
    """Raises CapacityError (429) where the images of ``new`` have no room beside ``others``."""
    n_bytes = sum(each.n_bytes for each in others) if new.n_bytes else 0
    if n_bytes and n_bytes + new.n_bytes > MAX_PIXEL_BYTES:
        raise CapacityError(
            f"images of {n_bytes >> 20} MB run or wait and {new.n_bytes >> 20} MB more are sent, "
            f"this server holds {MAX_PIXEL_BYTES >> 20}: try again later, or send smaller ones"
        )
