"""A pool of refcounted block ids. Every operation is O(number of ids named)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable

from kvasir.core.errors import CapacityError, KvasirError


class BlockPool:
    """Ids 0 … n_blocks - 1, each free, cached, or held by one or more owners.

    A block written by one owner must have one owner; shared blocks are read only. A block whose
    last owner leaves stays cached while it is ``known``, because it may be wanted again, until its
    space is needed: the one that was given up first goes first.
    """

    def __init__(
        self,
        n_blocks: int,
        window: int = 0,
        known: Container[int] = (),
        on_evict: Callable[[int], None] | None = None,
    ) -> None:
        """``on_evict``: a cached block is about to be given to another owner."""
        if n_blocks < 1:
            raise KvasirError(f"a pool of {n_blocks} blocks: needs at least 1")
        self.window = window
        """Positions that a token sees of the blocks' entries; 0: all up to itself."""
        self._refs = [0] * n_blocks
        self._free = list(range(n_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        """A dict would look through all that have left to find the first."""
        self._known = known
        self._on_evict = on_evict

    @property
    def n_blocks(self) -> int:
        return len(self._refs)

    @property
    def n_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def n_cached(self) -> int:
        """Blocks without owner whose contents are kept."""
        return len(self._cached)

    @property
    def n_available(self) -> int:
        """Blocks that can be allocated."""
        return len(self._free) + len(self._cached)

    @property
    def n_used(self) -> int:
        return len(self._refs) - self.n_available

    def refs(self, block: int) -> int:
        """Owners of ``block``."""
        self._check_id(block)
        return self._refs[block]

    def is_shared(self, block: int) -> bool:
        """Whether its contents are somebody else's as well, or known, so that none may write it."""
        return self._refs[block] > 1 or block in self._known

    def n_idle(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` have no owner."""
        refs = self._refs
        return [refs[block] for block in blocks].count(0)

    def cached(self) -> tuple[int, ...]:
        """Cached blocks, the next to go first."""
        return tuple(self._cached)

    def require(self, n: int) -> None:
        """Raises CapacityError if fewer than ``n`` blocks can be allocated."""
        if n > len(self._free) + len(self._cached):
            raise CapacityError(
                f"needs {n} blocks, {self.n_available} of {self.n_blocks} are free or cached"
            )

    def allocate(self, n: int) -> tuple[int, ...]:
        """``n`` blocks, one owner each: free ones, then cached ones, which lose their contents.

        Raises CapacityError, taking none, if there are too few.
        """
        if n < 0:
            raise KvasirError(f"allocation of {n} blocks: needs at least 0")
        self.require(n)
        free, refs = self._free, self._refs
        taken = tuple([free.pop() if free else self._evict() for _ in range(n)])
        for block in taken:
            refs[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each of ``blocks``, which are used or cached."""
        refs, held = self._refs, tuple(blocks)
        for block in held:
            if block not in self._cached:
                self._owned(block)
        for block in held:
            if not refs[block]:
                del self._cached[block]
            refs[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """One owner less for each of ``blocks``; without owners it is cached or free again."""
        refs, known = self._refs, self._known
        for block in blocks:
            if not 0 <= block < len(refs) or not refs[block]:
                self._owned(block)
            refs[block] = n = refs[block] - 1
            if n:
                continue
            if block in known:
                self._cached[block] = None
            else:
                self._free.append(block)

    def forget(self, blocks: Iterable[int]) -> None:
        """The contents of ``blocks`` are not wanted any more: those without owners are free."""
        for block in blocks:
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)

    def check(self) -> None:
        """Raises KvasirError unless every block is either free, once, or cached, or owned."""
        free, cached = set(self._free), set(self._cached)
        if len(free) != len(self._free):
            raise KvasirError(f"{len(self._free) - len(free)} blocks are free twice")
        owned = {block for block, refs in enumerate(self._refs) if refs > 0}
        n_known = len(free) + len(cached) + len(owned)
        if len(free | cached | owned) != n_known or n_known != self.n_blocks or min(self._refs) < 0:
            raise KvasirError(
                f"free {len(free)} + cached {len(cached)} + used {len(owned)} "
                f"!= total {self.n_blocks}, or a block is two of them"
            )
        lost = [block for block in cached if block not in self._known]
        if lost:
            raise KvasirError(f"blocks {lost} are cached without contents")

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        if self._on_evict is not None:
            self._on_evict(block)
        return block

    def _check_id(self, block: int) -> None:
        if not 0 <= block < len(self._refs):
            raise KvasirError(f"block {block} is outside the pool of {len(self._refs)}")

    def _owned(self, block: int) -> None:
        self._check_id(block)
        if not self._refs[block]:
            raise KvasirError(f"block {block} is free and has no owner to give up or share")
