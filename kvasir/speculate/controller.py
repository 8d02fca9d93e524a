"""Which drafts a step takes on: those with which it gives most tokens a second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from kvasir.speculate.base import Draft, Known
from kvasir.speculate.curve import Curve
from kvasir.speculate.passes import Chains, PassCosts
from kvasir.speculate.survival import Survival

STALL_SECONDS = 2e-4
"""That a step waits when it is planned behind the one before, not beside it: what follows a token
is drafted when that is known. 6 % of a step of one token of SmolLM2, about."""
MAX_SLOTS = 96
"""Tokens that may be asked for in a step, of all requests: more would take longer to weigh than
they save."""
HORIZON = 32
"""Tokens, at least, that an answer goes on for, as far as anybody can tell; later as many as it
has."""
HOPELESS = 0.7
"""Of the best rate so far: from there on no more tokens are weighed. The first of many streams pay
for the passes of all."""
PROBES = 4, 128
"""Steps in a row that are drafted for before one is not, so that what they take without is known:
at first, and, doubled each time, in the end."""
CHUNK_SHARE = 0.5
"""Of a step, that taking it in may add."""
MIN_CHUNK = 16
"""Tokens of it that are taken in whatever they take."""


class _Slot(NamedTuple):
    """A drafted token."""

    survival: float
    """That the target draws it, and those before it."""
    draft: int
    """Index."""


class Ask(NamedTuple):
    """Of a request, what a draft program could be asked for."""

    known: Known
    n_most: int
    """Tokens."""
    evidence: int
    lag: int
    """Tokens that it has to take in first."""
    n_left: int
    """Outputs that the request may still have."""
    drafter: int = 0
    """Whose the draft program is, of several."""

    @property
    def horizon(self) -> int:
        """Tokens within which it must pay to take in what the draft program lacks."""
        n_outputs = len(self.known.tokens) - self.known.n_prompt
        return min(self.n_left, max(HORIZON, n_outputs))


class Controller:
    """Learns what drafts bring and what steps cost. Drafts without evidence pass as they are, and
    where it is not adaptive, all of them. Deterministic: equal steps in equal order lead to equal
    choices."""

    def __init__(
        self,
        *,
        is_adaptive: bool = True,
        n_least: int = 0,
        draft_share: float = 0.1,
        is_head: bool = False,
    ) -> None:
        """``n_least``: tokens of a draft below which none is computed. ``draft_share``: of a step
        of the target, that a pass of a draft program is expected to take; ``is_head``: it reads
        along, whoever asks."""
        self._is_adaptive = is_adaptive
        self._n_least = n_least
        self._is_head = is_head
        self._survival = Survival()
        self._curve = Curve()
        self._passes = PassCosts(draft_share)
        self._refused: set[int] = set()
        """Ids of requests for which it did not pay to ask, the last time."""
        self._n_asked_in_a_row = 0
        self._probe_after = PROBES[0]

    def best(self, known: Known, drafts: Sequence[Draft]) -> Draft:
        """Of what several drafters propose for a request the draft that brings most tokens, as far
        as that can be foretold; the first of equal ones. One that has to be asked first counts as
        what it will bring, where that paid: else any other's would keep it from ever beginning."""
        return max(drafts, key=lambda draft: self._gain(known, draft))

    def chosen(
        self, requests: Sequence[Known], drafts: Sequence[Draft], n_others: int, seconds: float
    ) -> list[Draft]:
        """The part of each draft, those of ``requests``, that pays in a step in which ``n_others``
        more have one token each, and all contexts take ``seconds``. A request that waits for its
        newest token misses the step that is planned meanwhile, unless all wait: where some have no
        draft, those of others must bring a token more."""
        if not self._is_adaptive:
            return [draft.head(self._enough(len(draft.tokens))) for draft in drafts]
        slots = self._slots(requests, drafts)
        n_taken = self._n_taken(slots, len(requests) + n_others, seconds)
        gains = [0.0] * len(drafts)
        lengths = [0] * len(drafts)
        for survival, i in slots[:n_taken]:
            gains[i] += survival
            lengths[i] += 1
        for i, draft in enumerate(drafts):
            if draft.is_whole:  # more than half of it pays
                lengths[i] = len(draft.tokens) if 2 * lengths[i] > len(draft.tokens) else 0
        if n_others or 0 in lengths:
            lengths = [n if gain >= 1 else 0 for n, gain in zip(lengths, gains, strict=True)]
        return [
            self._cut(known, draft, n)
            for known, draft, n in zip(requests, drafts, lengths, strict=True)
        ]

    def asked(self, asks: Sequence[Ask], n_others: int, seconds: float) -> list[int]:
        """How many tokens the draft program is asked for behind each of ``asks``, as if they were
        verified in this step, in which ``n_others`` more have one token each and all contexts take
        ``seconds``. What each draft step takes counts, and what has to be taken in before."""
        if not self._is_adaptive:
            return [self._enough(ask.n_most) for ask in asks]
        slots = self._asked_slots(asks)
        n_taken = self._n_asked(asks, slots, len(asks) + n_others, seconds)
        if self._is_probe(n_taken):
            return [0 if ask.evidence else ask.n_most for ask in asks]
        gains, counts = [0.0] * len(asks), [0] * len(asks)
        for survival, i in slots[:n_taken]:
            gains[i] += survival
            counts[i] += 1
        if n_others or 0 in counts:
            counts = [n if gain >= 1 else 0 for n, gain in zip(counts, gains, strict=True)]
        for ask, n in zip(asks, counts, strict=True):
            (self._refused.discard if n else self._refused.add)(ask.known.id)
            if ask.n_most and ask.evidence and not n:
                self._survival.passed(ask.known.id, ask.evidence, ask.drafter)
        counts = [n if ask.evidence else ask.n_most for ask, n in zip(asks, counts, strict=True)]
        return [self._enough(n) for n in counts]

    def chunk(self, n_tokens: int) -> int:
        """Tokens that the draft program takes in beside a step of ``n_tokens``, at most."""
        room = CHUNK_SHARE * self._curve.seconds(max(1, n_tokens))
        return max(MIN_CHUNK, self._passes.longest(room, self._curve.seconds(1))) + 2 * n_tokens

    def drafted(self, passes: Sequence[int], seconds: float) -> None:
        """Passes of the draft program, of so many tokens each, took ``seconds``."""
        self._passes.observe(passes, seconds)

    def grown(self, known: Known, draft: Draft, n_most: int) -> Draft:
        """Of ``draft`` at most ``n_most`` tokens: of a tree those that are likeliest to be drawn,
        the best first, so that each beginning of it is the best of its size."""
        if draft.is_whole or not (draft.parents and draft.evidence):
            return draft if len(draft.tokens) <= n_most else draft.head(n_most)
        shares = self._survival.nodes(known.id, draft)
        order = sorted(range(len(shares)), key=lambda node: -shares[node])
        return draft.ordered(order[:n_most])

    def drew(self, known: Known, draft: Draft, path: Sequence[int]) -> None:
        """Of ``draft`` the target drew the tokens of ``path``, indices from the root on."""
        if not draft.evidence or not draft.teaches:
            return
        if draft.parents:
            self._survival.drew_tree(known.id, draft, path)
        else:
            n, evidence = len(draft.tokens), draft.evidence
            self._survival.drew(known.id, evidence, n, len(path), draft.drafter)

    def ended(self, known: Known) -> None:
        self._refused.discard(known.id)
        self._survival.ended(known.id)

    def decoded(self, n_tokens: int, seconds: float) -> None:
        """A step of nothing but newest tokens and drafts took ``seconds`` beside its contexts."""
        self._curve.observe(n_tokens, seconds)

    def over(self, n_tokens: int, n_drafted: int) -> float:
        """How much longer a step of ``n_tokens`` takes for ``n_drafted`` of them: a factor."""
        return self._curve.seconds(n_tokens) / self._curve.seconds(n_tokens - n_drafted)

    def _gain(self, known: Known, draft: Draft) -> float:
        """Tokens that are drawn of a draft, or of what is asked for."""
        n = len(draft.tokens)
        if not n and known.id not in self._refused:
            n = draft.n_asked
        if not draft.evidence:
            return float(n)
        if draft.parents:
            return sum(self._survival.nodes(known.id, draft))
        each = self._survival.of(known.id, draft.evidence, draft.drafter)
        return sum([each ** (j + 1) for j in range(n)])

    def _slots(self, requests: Sequence[Known], drafts: Sequence[Draft]) -> list[_Slot]:
        """All that are drafted with evidence, the likeliest first; of a draft in its order."""
        slots = []
        for i, (known, draft) in enumerate(zip(requests, drafts, strict=True)):
            if draft.evidence:
                shares = self._survival.nodes(known.id, draft)
                if draft.is_whole and shares:
                    shares = [sum(shares) / len(shares)] * len(shares)
                slots += [_Slot(share, i) for share in shares]
        return sorted(slots, key=lambda slot: -slot.survival)

    def _n_taken(self, slots: Sequence[_Slot], alone: int, seconds: float) -> int:
        """Of the first slots so many as make the rate highest."""
        tokens = accumulate((slot.survival for slot in slots), initial=float(alone))
        best, best_rate = 0, 0.0
        for n, expected in enumerate(tokens):
            took = self._curve.seconds(alone + n) + seconds + (STALL_SECONDS if n else 0.0)
            if expected / took > best_rate:
                best, best_rate = n, expected / took
        return best

    def _enough(self, n: int) -> int:
        return n if n >= self._n_least else 0

    def _asked_slots(self, asks: Sequence[Ask]) -> list[_Slot]:
        slots = []
        for i, ask in enumerate(asks):
            if ask.n_most and ask.evidence:
                each = self._survival.of(ask.known.id, ask.evidence, ask.drafter)
                slots += [_Slot(each ** (j + 1), i) for j in range(ask.n_most)]
        return sorted(slots, key=lambda slot: -slot.survival)[:MAX_SLOTS]

    def _n_asked(
        self, asks: Sequence[Ask], slots: Sequence[_Slot], alone: int, seconds: float
    ) -> int:
        """Of the first slots so many as make the rate highest, drafting included."""
        step = self._curve.seconds(1)
        chains = Chains(self._passes, step, len(asks), is_head=self._is_head)
        expected, lacking = float(alone), 0.0
        best, best_rate = 0, alone / (self._curve.seconds(alone) + seconds)
        for n, (survival, i) in enumerate(slots, 1):
            if not chains.lengths[i]:
                lacking += chains.pass_seconds(asks[i].lag) / asks[i].horizon
            chains.add(i)
            expected += survival
            took = self._curve.seconds(alone + n) + seconds + STALL_SECONDS
            rate = expected / (took + chains.seconds + lacking)
            if rate > best_rate:
                best, best_rate = n, rate
            elif rate < HOPELESS * best_rate:
                break
        return best

    def _is_probe(self, n_asked: int) -> bool:
        """Nothing is drafted, though ``n_asked`` tokens would be."""
        if not n_asked:
            self._n_asked_in_a_row, self._probe_after = 0, PROBES[0]
            return False
        self._n_asked_in_a_row += 1
        if self._n_asked_in_a_row <= self._probe_after:
            return False
        self._n_asked_in_a_row, self._probe_after = 0, min(2 * self._probe_after, PROBES[1])
        return True

    def _cut(self, known: Known, draft: Draft, n: int) -> Draft:
        if not draft.evidence:
            return draft
        n = self._enough(n)
        if not n and draft.tokens:
            self._survival.passed(known.id, draft.evidence, draft.drafter)
        return draft.head(n)
