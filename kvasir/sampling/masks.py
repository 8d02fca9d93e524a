"""Who says which tokens may come next: structured output as the engine sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint32]
"""uint32 [ceil(vocabulary / 32)]: token t may be drawn when bit t % 32 of word t // 32 is 1. Bits
past the vocabulary are ignored."""


class NativeFill(NamedTuple):
    """A mask that threads without the interpreter can make, through a library's C interface."""

    calls: tuple[int, int, int]
    """Addresses of int32 consume(matcher, uint32 token), int32 mask(matcher, uint32 *bits, size_t
    n_bytes), which give 0 unless the matcher is worth nothing any more, and void cancel(handle)."""
    matcher: int
    handle: int
    """What cancels the matcher, from any thread."""
    tokens: Sequence[int]
    """Outputs that come before."""


class Masks(Protocol):
    """Follows the outputs of constrained requests, by slot: a number that each has for itself.

    What a constraint means is known here alone. A mask is a function of the constraint and the
    outputs before it and of nothing else, so that an answer does not depend on how it is computed.
    Whether a token may end the answer is for the mask to say as for any other. Only tokens that the
    client gets are accepted; a draft is asked for as a path and leaves no trace, so that nothing is
    ever taken back. What a method raises ends the request in that slot. Calls for one slot come one
    after the other, those for several from several threads.
    """

    def prepare(self, constraint: str) -> Callable[[], bool]:
        """A request with it has arrived: what takes long may begin beside the steps. Whether that
        is done; the request waits for it before it is queued, and holds what this gave until it
        ends. Neither may raise."""
        ...

    def open(self, slot: int, constraint: str, outputs: Sequence[int]) -> None:
        """Give a closed ``slot`` to a request; ``outputs``: drawn before it was preempted or
        replayed. When it raises, the slot stays closed."""
        ...

    def accept(self, slot: int, tokens: Sequence[int]) -> None:
        """Outputs that follow those so far."""
        ...

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        """Set in ``bits``, which are 0, what may follow the outputs so far and ``path``: drafted or
        forced tokens, each of which may follow those before it."""
        ...

    def native(self, slot: int, tokens: Sequence[int]) -> NativeFill | None:
        """What makes the mask behind outputs that follow those so far; until it is done nothing
        else is asked of ``slot``. None: ``accept`` and ``fill`` do."""
        ...

    def filled(self, slot: int, tokens: Sequence[int]) -> None:
        """That mask is made: the outputs are accepted."""
        ...

    def close(self, slot: int) -> None:
        """Nothing is asked of an open ``slot`` any more. May not raise."""
        ...


def allows(bits: Bits, token: int) -> bool:
    return bool(bits.item(token // 32) >> token % 32 & 1)


def first_allowed(bits: Bits) -> int:
    """The lowest token that is allowed; -1 where none is."""
    words = np.flatnonzero(bits)
    if not len(words):
        return -1
    word = bits.item(words[0])
    return 32 * int(words[0]) + (word & -word).bit_length() - 1


def only(bits: Bits) -> int:
    """The one token that is allowed; -1 where none is, or several."""
    words = np.flatnonzero(bits)
    if len(words) != 1:
        return -1
    word = int(bits[words[0]])
    return -1 if word & (word - 1) else 32 * int(words[0]) + word.bit_length() - 1


def apply(logits: NDArray[np.float32], bits: Bits) -> None:
    """Set the logits float32 [V] of what ``bits`` forbid to -inf."""
    allowed = np.unpackbits(bits.astype("<u4").view(np.uint8), bitorder="little")[: logits.size]
    logits[allowed == 0] = -np.inf
