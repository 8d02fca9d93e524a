"""Drafts as values, and who proposes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvasir.core.errors import KvasirError
from kvasir.core.request import Context


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow the last known token: a chain, or a tree."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    """Empty: a chain. Else per token the index of its parent in ``tokens``; -1 is the last known
    token. Parents come before their children, siblings the likelier first, and no two siblings are
    equal."""
    n_asked: int = 0
    """Tokens that the executor is to draft behind these, of a chain."""
    evidence: int = 0
    """How sure it is, in the proposer's own measure; 0: it does not say, and is taken as it is."""
    n_predicted: int = 0
    """Of a chain, how many of the first tokens the request's prediction has there, too."""
    drafter: int = 0
    """Of several, which proposed it."""
    n_sampled: int = 0
    """Of a chain, how many of the first tokens were drawn from distributions that the executor
    keeps."""
    is_whole: bool = False
    """Some of its tokens are there to be learned from: all are computed, or none."""
    teaches: bool = True
    """What becomes of it says how likely others of its evidence are drawn."""

    def __post_init__(self) -> None:
        if not self.parents:
            return
        if len(self.parents) != len(self.tokens):
            raise KvasirError(f"{len(self.tokens)} drafted tokens with {len(self.parents)} parents")
        if any(not -1 <= parent < i for i, parent in enumerate(self.parents)):
            raise KvasirError(f"a drafted token comes before its parent: {self.parents}")
        if len(set(zip(self.parents, self.tokens, strict=True))) != len(self.tokens):
            raise KvasirError(f"a draft has equal siblings: {self.tokens}, parents {self.parents}")

    @property
    def ranks(self) -> tuple[int, ...]:
        """Per token how many of its siblings come before it."""
        if not self.parents:
            return (0,) * len(self.tokens)
        seen: Counter[int] = Counter()
        ranks = []
        for parent in self.parents:
            ranks.append(seen[parent])
            seen[parent] += 1
        return tuple(ranks)

    @property
    def depth(self) -> int:
        """Tokens of its longest path."""
        if not self.parents:
            return len(self.tokens)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return max(depths)

    def head(self, n: int) -> Draft:
        """The first ``n`` tokens: a valid draft again, and a chain where no two are siblings."""
        n_predicted = min(n, self.n_predicted)
        tokens, parents = self.tokens[:n], self.parents[:n]
        if parents == tuple(range(-1, len(parents) - 1)):
            parents = ()
        n_sampled = min(n, self.n_sampled)
        asked, evidence, drafter = self.n_asked, self.evidence, self.drafter
        fixed = self.is_whole, self.teaches
        return Draft(tokens, parents, asked, evidence, n_predicted, drafter, n_sampled, *fixed)

    def ordered(self, order: Sequence[int]) -> Draft:
        """Of a tree the tokens of these indices, in this order, in which parents come before their
        children and siblings stay as they are."""
        places = {node: i for i, node in enumerate(order)} | {-1: -1}
        tokens = tuple([self.tokens[node] for node in order])
        parents = tuple([places[self.parents[node]] for node in order])
        asked, evidence, drafter = self.n_asked, self.evidence, self.drafter
        return Draft(tokens, parents, asked, evidence, drafter=drafter).head(len(order))


class Known(Protocol):
    """What a proposer may look at."""

    @property
    def id(self) -> int: ...

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and output so far; read only."""
        ...

    @property
    def n_prompt(self) -> int: ...

    @property
    def prediction(self) -> Sequence[int]:
        """What its client expects much of the output to be."""
        ...

    @property
    def context(self) -> Context:
        """Requests of other contexts may learn nothing of its tokens."""
        ...

    @property
    def drafted(self) -> Sequence[int]:
        """What the executor drafted to follow the newest token: ids, or references where that token
        is still being drawn."""
        ...

    @property
    def siblings(self) -> Sequence[Sequence[int]]:
        """By rank, the next best of what the executor drafted in the places of ``drafted``; -1
        where there is none."""
        ...


class Proposer(Protocol):
    def propose(self, requests: Sequence[Known], k: int) -> Sequence[Draft]:
        """For each request a chain of at most ``k`` >= 1 tokens to follow its ``tokens``, or a
        tree, of which the likeliest ``k`` are computed at most; an empty draft is fine. While a
        step runs, the newest token may be missing there: what is proposed then only says that
        waiting for it is worth while."""
        ...

    def saw(
        self,
        known: Known,
        tokens: Sequence[int],
        parents: Sequence[int],
        likeliest: Sequence[Sequence[int]],
    ) -> None:
        """The target computed ``tokens`` of a request, and found of each what is likeliest to
        follow: where ``EngineSizes.n_candidates`` asks for it. With drafted ones among them the
        first is the newest known one. ``parents``: as those of a ``Row``; empty: a chain."""
        return

    def ended(self, known: Known) -> None:
        """It has all its tokens, or nobody wants more."""
        return
