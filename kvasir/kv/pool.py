"""A pool of refcounted block ids. Every operation is O(number of ids named)."""

from __future__ import annotations

from collections.abc import Iterable

from kvasir.core.errors import CapacityError, KvasirError


class BlockPool:
    """Ids 0 … n_blocks - 1, each free or held by one or more owners.

    A block written by one owner must have one owner; shared blocks are read only.
    """

    def __init__(self, n_blocks: int) -> None:
        if n_blocks < 1:
            raise KvasirError(f"a pool of {n_blocks} blocks: needs at least 1")
        self._refs = [0] * n_blocks
        self._free = list(range(n_blocks - 1, -1, -1))

    @property
    def n_blocks(self) -> int:
        return len(self._refs)

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_used(self) -> int:
        return len(self._refs) - len(self._free)

    def refs(self, block: int) -> int:
        """Owners of ``block``."""
        self._known(block)
        return self._refs[block]

    def allocate(self, n: int) -> tuple[int, ...]:
        """``n`` free blocks, one owner each. Raises CapacityError, taking none, if they are not."""
        if n < 0:
            raise KvasirError(f"allocation of {n} blocks: needs at least 0")
        if n > len(self._free):
            raise CapacityError(f"needs {n} blocks, {len(self._free)} of {self.n_blocks} are free")
        taken = tuple(self._free.pop() for _ in range(n))
        for block in taken:
            self._refs[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each of ``blocks``."""
        held = tuple(blocks)
        for block in held:
            self._owned(block)
        for block in held:
            self._refs[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """One owner less for each of ``blocks``; a block without owners is free again."""
        for block in blocks:
            self._owned(block)
            self._refs[block] -= 1
            if not self._refs[block]:
                self._free.append(block)

    def check(self) -> None:
        """Raises KvasirError unless every block is either free, once, or owned."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise KvasirError(f"{len(self._free) - len(free)} blocks are free twice")
        owned = {block for block, refs in enumerate(self._refs) if refs > 0}
        if free & owned or len(free) + len(owned) != self.n_blocks or min(self._refs) < 0:
            raise KvasirError(
                f"free {len(free)} + used {len(owned)} != total {self.n_blocks}, "
                f"{len(free & owned)} both"
            )

    def _known(self, block: int) -> None:
        if not 0 <= block < len(self._refs):
            raise KvasirError(f"block {block} is outside the pool of {len(self._refs)}")

    def _owned(self, block: int) -> None:
        self._known(block)
        if not self._refs[block]:
            raise KvasirError(f"block {block} is free and has no owner to give up or share")
