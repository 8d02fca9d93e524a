"""Which prompts begin alike, and what of that was found computed: a tree of the newest prompts, as
the API process knows them.

The engine is not asked, and nobody's requests pay: one keeps what begins its prompt when it is
submitted, and the tree is made when somebody looks, of the prompts of the key that looks. What the
engine has evicted since is not known here; that a later prompt did not find it is.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from kvasir.core.request import Context
from kvasir.serve.resolved import Ids
from kvasir.serve.slices import Work
from kvasir.timing.timeline import Timeline

MAX_PROMPTS = 256
MAX_TOKENS = 1024
"""Of each prompt, from its beginning: a megabyte in all."""
MAX_NODES = 64
"""Of a tree that is told, those that most prompts share."""
ID_BYTES = 4


class KnownPrompt(NamedTuple):
    owner: bytes
    model: str
    request: int
    """The engine's id of its first choice."""
    context: Context
    at: float
    """When it was submitted, on the monotonic clock."""
    tokens: bytes
    """Its first ids, packed."""


class Shared(msgspec.Struct, frozen=True):
    """A run of tokens that several prompts have in the same place."""

    parent: int
    """Index of what stands before it; -1 at the beginning of prompts."""
    start: int
    n_tokens: int
    ids: Ids
    """The first of these, for who may read them."""
    n_prompts: int
    n_hits: int
    """Prompts that found all of it computed."""
    at: float
    """When the newest of them was submitted."""


class NewestPrompts:
    """Lives in one event loop."""

    def __init__(self) -> None:
        self._prompts: deque[KnownPrompt] = deque(maxlen=MAX_PROMPTS)

    def add(
        self, owner: bytes, model: str, request: int, context: Context, at: float, ids: Ids
    ) -> None:
        """Tens of microseconds."""
        tokens = array("I", ids[:MAX_TOKENS]).tobytes()
        self._prompts.append(KnownPrompt(owner, model, request, context, at, tokens))

    def of(self, owner: bytes, model: str) -> tuple[list[KnownPrompt], int]:
        """The prompts of a key, and how many those of others are."""
        all_of = [x for x in self._prompts if x.model == model]
        own = [x for x in all_of if x.owner == owner]
        return own, len(all_of) - len(own)


def tree(prompts: Sequence[KnownPrompt], timeline: Timeline, n_ids: int) -> Work[list[Shared]]:
    """What at least two of them share, parents before their children; with the first ``n_ids`` of
    each run. In pieces of less than a millisecond."""
    found: list[Shared] = []
    by_context: dict[Context, list[KnownPrompt]] = {}
    for prompt in prompts:
        by_context.setdefault(prompt.context, []).append(prompt)
    for alike in by_context.values():
        yield
        todo = [(sorted(alike, key=lambda x: x.tokens), 0, -1)]
        while todo:
            some, start, parent = todo.pop()
            for run in _runs(some, start):
                end = _n_common(run[0].tokens, run[-1].tokens)
                todo.append((run, end, len(found)))
                found.append(_shared(run, timeline, parent, start, end, n_ids))
            yield
    return _largest(found)


def _runs(prompts: Sequence[KnownPrompt], start: int) -> list[list[KnownPrompt]]:
    """Of sorted prompts those of two and more that go on with the same token."""
    at = start * ID_BYTES
    longer = [x for x in prompts if len(x.tokens) > at]
    runs = (list(run) for _, run in groupby(longer, lambda x: x.tokens[at : at + ID_BYTES]))
    return [run for run in runs if len(run) > 1]


def _shared(
    run: Sequence[KnownPrompt], timeline: Timeline, parent: int, start: int, end: int, n_ids: int
) -> Shared:
    packed = run[0].tokens[start * ID_BYTES : min(end, start + n_ids) * ID_BYTES]
    n_hits = sum(timeline.hit(x.request) >= min(end, _most(x)) for x in run)
    newest = max(x.at for x in run)
    return Shared(parent, start, end - start, tuple(array("I", packed)), len(run), n_hits, newest)


def _most(prompt: KnownPrompt) -> int:
    """That it can have found: its last token is computed to go on from."""
    return len(prompt.tokens) // ID_BYTES - 1


def _n_common(a: bytes, b: bytes) -> int:
    """Leading ids that both have."""
    if a == b[: len(a)]:
        return len(a) // ID_BYTES
    low, high = 0, min(len(a), len(b)) // ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        is_same = a[: middle * ID_BYTES] == b[: middle * ID_BYTES]
        low, high = (middle, high) if is_same else (low, middle - 1)
    return low


def _largest(found: Sequence[Shared]) -> list[Shared]:
    """At most MAX_NODES. No child is of more prompts than its parent, which stands before it."""
    order = sorted(range(len(found)), key=lambda i: (-found[i].n_prompts, i))[:MAX_NODES]
    kept = {old: new for new, old in enumerate(sorted(order))}
    told = (found[i] for i in sorted(order))
    return [msgspec.structs.replace(x, parent=kept.get(x.parent, -1)) for x in told]
