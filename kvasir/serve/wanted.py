"""How much a stream is for."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass

from kvasir.core.errors import CapacityError
from kvasir.core.request import ALIKE, Standing
from kvasir.core.tiles import Media

MAX_BYTES = 512 * 2**20
"""Of images, constraints and predictions of all requests that run or wait; the engine keeps them as
well."""


PREDICTED_BYTES = 36
"""Of a token of a prediction, in either process: as a number, and its place in a list."""


def bytes_beside(media: Iterable[Media], constraint: str, prediction: Sized) -> int:
    """Of what goes with the prompts of a request."""
    pixels = sum(len(each.pixels) for each in media)
    return pixels + len(constraint) + PREDICTED_BYTES * len(prediction)


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
    """Of the pixels that go with them, of their constraint and of what is predicted."""
    n_beams: int = 0
    """Choices of each that come once its prompt is computed: those of a search, but for one."""

    @property
    def n_choices(self) -> int:
        return self.n_requests * self.n

    @property
    def n_queued_tokens(self) -> int:
        """Of the prompts of all choices, as the queue counts them."""
        return self.n * self.n_tokens

    @property
    def n_to_come(self) -> int:
        """Choices."""
        return self.n_requests * self.n_beams

    @property
    def tokens_to_come(self) -> int:
        """Of their prompts."""
        return self.n_beams * self.n_tokens


NOTHING = Size(0, 0, 0)


def check_bytes(new: Size, others: Iterable[Size]) -> None:
    """Raises CapacityError (429) where what goes with ``new`` has no room beside ``others``."""
    n_bytes = sum(each.n_bytes for each in others) if new.n_bytes else 0
    if n_bytes and n_bytes + new.n_bytes > MAX_BYTES:
        raise CapacityError(
            f"images, grammars and predictions of {n_bytes >> 20} MB run or wait and "
            f"{new.n_bytes >> 20} MB more are sent, this server holds {MAX_BYTES >> 20}: try "
            "again later, or send smaller ones"
        )
