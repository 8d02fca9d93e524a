"""Chooses variants of linears by measuring them in the steps that are computed anyway.

Of each class of rows the first step is as ever. In the next ones the layers of one shape run
different variants, drawn by lot, and every phase is timed; when each variant has been seen often
enough, the fastest by median meet the usual one once more, and the winner is kept. So measuring
takes no time of its own, only what the slower variants take longer, on the weights and in the
caches that count. All variants give equal bits: nothing that is answered depends on it.
"""

from __future__ import annotations

import logging
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.exec.cpu.sites import CLASS_ENDS, Site, class_name, row_class
from kvasir.exec.cpu.tuned import VARIANTS, Choices, ChosenVariant, TunedFile

_log = logging.getLogger("kvasir.tuning")

SAMPLES = 12
"""Times of each variant in the last round, for its median; half as many in the first."""
FINALISTS = 3
LEAST_GAIN = 0.02
"""Share of its time that another variant than the first must save."""
BY_ROWS = row_class(CLASS_ENDS[-2] + 1)
"""Classes from this one on are bound by arithmetic: their times are compared by row."""

Choose = Callable[[int, int, int], None]
"""Weight, class of rows, variant: from the next step on."""
_NO_ROWS = -1
_Key = tuple[str, int]
"""Shape of a site, class of rows."""


class _Trial:
    """The variants of one shape and class. In the first round all of them; the two that are fastest
    beside the usual one meet it again, so that a chance of the first decides nothing."""

    def __init__(self, sites: Sequence[Site], number: int, samples: int) -> None:
        self.sites = sites
        self.number = number
        self._samples = samples
        self._times: dict[int, list[float]] = {v: [] for v in sites[0].variants[number]}
        self._is_last = len(self._times) <= FINALISTS
        self._order = random.Random(0)
        self._coming: list[int] = []
        self._running: list[int] = []

    def variants(self) -> list[int]:
        """Of each site in the next step; all come equally often, in no order."""
        while len(self._coming) < len(self.sites):
            every = list(self._times)
            self._order.shuffle(every)
            self._coming += every
        n = len(self.sites)
        self._running, self._coming = self._coming[:n], self._coming[n:]
        return self._running

    def take(self, seconds: NDArray[np.float64], rows: int) -> None:
        per = rows if self.number >= BY_ROWS else 1
        for site, variant in zip(self.sites, self._running, strict=True):
            self._times[variant].append(float(seconds[site.phase]) / per)

    def is_over(self) -> bool:
        """Whether there is a choice; begins the last round where it is time for that."""
        needed = self._samples if self._is_last else self._samples // 2
        if min(map(len, self._times.values())) < needed:
            return False
        if self._is_last:
            return True
        first, *others = sorted(self._typical().items(), key=lambda entry: entry[0])
        best = sorted(others, key=lambda entry: entry[1])[: FINALISTS - 1]
        self._times = {variant: [] for variant, _ in (first, *best)}
        self._is_last, self._coming = True, []
        return False

    def choice(self) -> ChosenVariant:
        typical = self._typical()
        usual, best = min(typical), min(typical, key=lambda v: typical[v])
        gain = 1 - typical[best] / typical[usual] if typical[usual] > 0 else 0.0
        if gain < LEAST_GAIN:
            return ChosenVariant(VARIANTS[usual], 0.0)
        return ChosenVariant(VARIANTS[best], round(gain, 3))

    def _typical(self) -> dict[int, float]:
        return {v: statistics.median(times) for v, times in self._times.items()}


class Tuning:
    """Of the linears of one program. Not thread-safe: the thread of the steps has it."""

    def __init__(
        self,
        sites: Sequence[Site],
        choose: Choose,
        n_phases: int,
        file: TunedFile | None = None,
        *,
        measures: bool = True,
        samples: int = SAMPLES,
    ) -> None:
        """``file``: where choices are found and kept; None: nowhere."""
        self.sites = tuple(sites)
        self._choose = choose
        self.file = file
        """None also once it could not be written: that is a line in the log, and not one for each
        choice."""
        self._measures = measures
        self._samples = samples
        self._sites: dict[str, list[Site]] = defaultdict(list)
        for site in sites:
            self._sites[site.shape].append(site)
        self._seconds = np.zeros(n_phases)
        self._chosen: dict[str, dict[int, ChosenVariant]] = defaultdict(dict)
        self._trials: dict[_Key, _Trial] = {}
        self._running: list[tuple[_Trial, int]] = []
        self._elsewhere: dict[str, Mapping[int, ChosenVariant]] = {}
        """What the file has of sites that the model has in another dtype."""
        self._before: dict[str, dict[int, ChosenVariant]] = {}
        """What was chosen before all is measured again: kept until it is."""
        self._seen: set[tuple[int, int]] = set()
        self._settled: set[tuple[int, int]] = set()
        self.n_found = self._find()
        """Choices that were found in the file."""

    def begin(self, n_tokens: int, n_logits: int) -> NDArray[np.float64] | None:
        """Before a step: where the time of each phase goes [phases], or None: it is not timed."""
        classes = row_class(n_tokens), row_class(n_logits) if n_logits else _NO_ROWS
        if not self._measures or classes in self._settled:
            return None
        self._running = self._open({"T": n_tokens, "R": n_logits})
        if not self._running:
            self._settled.add(classes)
            return None
        if classes not in self._seen:
            self._seen.add(classes)
            self._running = []
            return None
        for trial, _ in self._running:
            for site, variant in zip(trial.sites, trial.variants(), strict=True):
                self._set(site, trial.number, variant)
        self._seconds[:] = 0
        return self._seconds

    def end(self) -> None:
        """After a step that was timed."""
        over = []
        for trial, rows in self._running:
            trial.take(self._seconds, rows)
            over += [trial] if trial.is_over() else []
        self._running = []
        for trial in over:
            self._keep(trial)
        if over and self.file is not None:
            is_kept = self.file.store(self._known())
            self.file = self.file if is_kept else None

    def again(self, samples: int) -> None:
        """Measures every variant so many times, whatever is chosen: the file keeps that of which
        nothing is measured."""
        self._samples, self._measures = samples, True
        self._before = {shape: dict(found) for shape, found in self._chosen.items()}
        for kept in (self._chosen, self._trials, self._seen, self._settled):
            kept.clear()

    @property
    def choices(self) -> Choices:
        return self._chosen

    def is_settled(self, n_tokens: int, n_logits: int) -> bool:
        """Whether all that steps of so many rows compute is chosen."""
        rows = {"T": row_class(n_tokens), "R": row_class(n_logits)}
        return not any(self._is_open(sites[0], rows) for sites in self._sites.values())

    def describe(self) -> str:
        """For people: what is chosen so far."""
        return described(self._chosen)

    def _known(self) -> Choices:
        """Newly chosen or from before."""
        shapes = self._before.keys() | self._chosen.keys()
        own = {x: {**self._before.get(x, {}), **self._chosen.get(x, {})} for x in sorted(shapes)}
        return {**self._elsewhere, **own}

    def _find(self) -> int:
        found = (self.file.load() if self.file else None) or {}
        self._elsewhere = {x: found[x] for x in found if x not in self._sites}
        n = 0
        for shape, of_class in found.items():
            sites = self._sites.get(shape, [])
            for number, choice in of_class.items():
                if sites and self._can(sites[0], number, choice.variant):
                    self._take(sites, number, choice)
                    n += 1
        return n

    def _can(self, site: Site, number: int, variant: str) -> bool:
        return (
            0 <= number < len(site.variants)
            and variant in VARIANTS
            and VARIANTS.index(variant) in site.variants[number]
        )

    def _open(self, rows: dict[str, int]) -> list[tuple[_Trial, int]]:
        classes = {symbol: row_class(n) for symbol, n in rows.items()}
        found = []
        for shape, sites in self._sites.items():
            n, number = rows[sites[0].rows_of], classes[sites[0].rows_of]
            if n and self._is_open(sites[0], classes):
                if (shape, number) not in self._trials:
                    self._trials[shape, number] = _Trial(sites, number, self._samples)
                found.append((self._trials[shape, number], n))
        return found

    def _is_open(self, site: Site, classes: dict[str, int]) -> bool:
        number = classes[site.rows_of]
        return number not in self._chosen[site.shape] and len(site.variants[number]) > 1

    def _keep(self, trial: _Trial) -> None:
        choice, shape = trial.choice(), trial.sites[0].shape
        self._take(trial.sites, trial.number, choice)
        del self._trials[shape, trial.number]
        _log.info(
            "%s, %s rows: %s, %.0f %% less time than %s",
            shape,
            class_name(trial.number),
            choice.variant,
            100 * choice.gain,
            VARIANTS[0],
        )

    def _take(self, sites: Sequence[Site], number: int, choice: ChosenVariant) -> None:
        self._chosen[sites[0].shape][number] = choice
        for site in sites:
            self._set(site, number, VARIANTS.index(choice.variant))

    def _set(self, site: Site, number: int, variant: int) -> None:
        for weight in site.weights:
            self._choose(weight, number, variant)


def described(choices: Choices) -> str:
    every = [choice for of_class in choices.values() for choice in of_class.values()]
    if not every:
        return f"{VARIANTS[0]} everywhere: nothing is measured yet"
    others = [choice.gain for choice in every if choice.variant != VARIANTS[0]]
    if not others:
        return f"{len(every)} measured: {VARIANTS[0]} is the fastest everywhere"
    mean, most = 100 * statistics.mean(others), 100 * max(others)
    return (
        f"{len(others)} of {len(every)} measured are others than {VARIANTS[0]}, which take "
        f"{mean:.0f} % less time, {most:.0f} % at most"
    )
