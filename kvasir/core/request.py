"""A request as the engine receives it: ids and numbers, in values that belong together."""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from kvasir.core.params import TokenParams
from kvasir.core.tiles import Media

PriorityClass = Literal["realtime", "standard", "batch"]
PRIORITY_CLASSES: tuple[PriorityClass, ...] = ("realtime", "standard", "batch")
"""The highest first."""
LOWEST = len(PRIORITY_CLASSES) - 1
"""Rank of the class that gives way."""
PoolKind = Literal["cls", "mean", "last"]
"""Of which tokens of a prompt the vector is the mean: the first, all, the last."""
NO_DRAWS = TokenParams(seed=0, max_tokens=0)
"""Of a request that asks for a vector instead of tokens."""


class Context(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What KV entries depend on besides the engine and the tokens: requests share them, in memory,
    on disk, by forks and by holds, in equal contexts only."""

    salt: str = ""
    """Chosen by who asks: others cannot time what is cached."""
    adapter: str = ""
    """Hash of the content of an adapter of the weights; empty without one."""


class Standing(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """When a request is served, among others: it changes no token. Times are seconds of the
    machine's monotonic clock."""

    priority_class: PriorityClass = "standard"
    tenant: str = ""
    """Tenants of a class share the engine fairly."""
    priority: int = 0
    """Among requests of one class and tenant, a lower one goes earlier."""
    ttft_by: float = inf
    """When its first token is due."""
    answer_by: float = inf
    """When its last token is due."""
    user: str = ""
    """Users of a tenant take turns in its line."""

    @property
    def owner(self) -> tuple[PriorityClass, str]:
        """Whom the engine shares itself between."""
        return self.priority_class, self.tenant

    @property
    def rank(self) -> int:
        """Of the class; 0 is the highest."""
        return PRIORITY_CLASSES.index(self.priority_class)

    @property
    def has_deadline(self) -> bool:
        return self.ttft_by < inf or self.answer_by < inf


PLAIN = Context()
ALIKE = Standing()
"""Of requests that say nothing."""


class EngineRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One choice of one request. ``id`` is unique for the life of the API process and chosen by
    it."""

    id: int
    prompt: tuple[int, ...]
    params: TokenParams
    context: Context = PLAIN
    standing: Standing = ALIKE
    emitted: tuple[int, ...] = ()
    """Output tokens that already reached the client: a replay continues after them."""
    n_scored: int = 0
    """Logprobs of the prompt that already reached the client: as with ``emitted``."""
    parent: int = -1
    """Id of a request, running or held, that this one forks from: entries of the tokens that both
    begin with are shared, also when the prefix cache is off. -1: none."""
    hold_seconds: float = 0.0
    """Its blocks are held for this long after it ended, unless a running request needs them."""
    pooling: PoolKind | None = None
    """Instead of tokens one vector is wanted, of the prompt: ``params`` are NO_DRAWS."""
    second: int = 0
    """Where the second text of a prompt of two begins, of a model that tells their tokens apart; 0:
    there is none."""
    media: tuple[Media, ...] = ()
    """What tokens of the prompt stand for, in their order; they do not overlap."""
    prediction: tuple[int, ...] = ()
    """What much of the output is expected to be: drafts may come of it. It changes no output."""
    is_resumed: bool = False
    """Another engine had taken it: it is not counted again, and ends at a deadline, but not because
    it may miss one."""
