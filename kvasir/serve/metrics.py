"""What ``/metrics`` says: what the API process counts, and what the engine last said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from kvasir import __version__
from kvasir.core.messages import DrafterStats, EngineStats
from kvasir.core.request import ALIKE, PRIORITY_CLASSES, PriorityClass, Standing
from kvasir.grammar.schema import KEYWORDS
from kvasir.serve import metric_table as table
from kvasir.serve.engine_counts import EngineCounts
from kvasir.serve.exposition import (
    CONTENT_TYPE,
    NAMINGS,
    Counter,
    CounterFamily,
    Histogram,
    HistogramFamily,
    Naming,
    Values,
    plain,
)
from kvasir.serve.metric_table import MetricInfo, Row, Stats
from kvasir.serve.procfs import ThisProcess
from kvasir.serve.top import OTHER, TopNames

__all__ = ["CONTENT_TYPE", "Finished", "Metrics", "ModelMetrics"]

FINISHES = ("stop", "length", "abort", "error")
MAX_CODES = 64
"""Values of the label ``code``: as many as the sources have; no client chooses one."""
NO_TENANT = "none"


class Finished(msgspec.Struct, frozen=True):
    """One choice that has ended; times are seconds."""

    reason: str
    n_prompt: int
    n_output: int
    queued: float
    prefill: float
    decode: float


class _ScrapedEngine(msgspec.Struct, frozen=True):
    """What is read at each scrape."""

    stats: Callable[[], EngineStats]
    counts: EngineCounts


class Metrics:
    """Of a server: one part for each model."""

    def __init__(self, prefix: str = "kvasir") -> None:
        """``prefix``: "kvasir", "vllm" or "both"."""
        self._namings = NAMINGS[prefix]
        kinds = [(info, info.kind == "histogram") for info in table.COUNTED]
        self._counts = {info.name: CounterFamily(info) for info, is_one in kinds if not is_one}
        self._histograms = {info.name: HistogramFamily(info) for info, is_one in kinds if is_one}
        self.lag = self.histogram(table.LAG)
        self.count(table.BUILD, __version__).inc()
        self._codes: set[str] = set()
        self._engines: dict[str, _ScrapedEngine] = {}
        self._process = ThisProcess()

    def of(
        self,
        model: str,
        stats: Callable[[], EngineStats],
        counts: EngineCounts | None = None,
    ) -> ModelMetrics:
        """The part of one more ``model``."""
        self._engines[model] = _ScrapedEngine(stats, counts or EngineCounts())
        return ModelMetrics(self, model)

    def count(self, info: MetricInfo, *values: str) -> Counter:
        return self._counts[info.name].of(*values)

    def histogram(self, info: MetricInfo, *values: str) -> Histogram:
        return self._histograms[info.name].of(*values)

    def drop(self, info: MetricInfo, *values: str) -> None:
        """A series that is not shown any more."""
        self._counts[info.name].drop(*values)

    def totals(self, info: MetricInfo) -> dict[Values, float]:
        """Of a counter, by the values of its labels."""
        return self._counts[info.name].totals()

    def count_error(self, code: str) -> None:
        known = code in self._codes or len(self._codes) < MAX_CODES
        self._codes.add(code if known else OTHER)
        self.count(table.ERRORS, code if known else OTHER).inc()

    def text(self, names: Collection[str] = ()) -> bytes:
        """The exposition format, UTF-8. ``names``: of families, as their lines of TYPE have them;
        empty for all. Names that nothing has give nothing."""
        return "".join(f"{line}\n" for line in self._lines(names)).encode()

    def _lines(self, names: Collection[str]) -> Iterator[str]:
        for counts in self._counts.values():
            yield from counts.lines(self._shown(counts.info, names))
        for histograms in self._histograms.values():
            yield from histograms.lines(self._shown(histograms.info, names))
        for info, read in self._read():
            if shown := self._shown(info, names):
                series = read()
                for naming in shown:
                    yield from plain(naming, info, series)

    def _shown(self, info: MetricInfo, names: Collection[str]) -> Sequence[Naming]:
        """Those under which ``names`` has it."""
        if not names:
            return self._namings
        return [naming for naming in self._namings if naming.family(info) in names]

    def _read(self) -> Iterator[tuple[MetricInfo, Callable[[], dict[Values, float]]]]:
        """What is known at a scrape alone."""
        stats = {model: engine.stats() for model, engine in self._engines.items()}
        disks = {model: each.disk for model, each in stats.items() if each.disk is not None}
        counts = {model: engine.counts for model, engine in self._engines.items()}
        yield from _rows(table.ENGINE, stats)
        yield from _drafter_rows(stats)
        yield from _rows(table.DISK, disks)
        yield from _rows(table.LIFE, counts)
        for info, read in table.PROCESS:
            yield info, partial(_each, read, {(): self._process})


def _rows(
    rows: tuple[Row[Stats], ...], sources: Mapping[str, Stats]
) -> Iterator[tuple[MetricInfo, Callable[[], dict[Values, float]]]]:
    named: dict[Values, Stats] = {(model,): source for model, source in sources.items()}
    for info, read in rows:
        yield info, partial(_each, read, named)


def _drafter_rows(
    stats: Mapping[str, EngineStats],
) -> Iterator[tuple[MetricInfo, Callable[[], dict[Values, float]]]]:
    named: dict[Values, DrafterStats] = {
        (model, x.method): x for model, own in stats.items() for x in own.drafters
    }
    for info, read in table.DRAFTERS:
        yield info, partial(_each, read, named)


def _each(read: Callable[[Stats], float], sources: Mapping[Values, Stats]) -> dict[Values, float]:
    return {values: read(source) for values, source in sources.items()}


class ModelMetrics:
    """Counts what the API process sees of one model."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self._tenants = TopNames()
        self._classes = {name: _ClassMetrics(metrics, model, name) for name in PRIORITY_CLASSES}
        self._cancelled = metrics.count(table.CANCELLED, model)

    def gaps(self, priority_class: PriorityClass) -> Histogram:
        """What the time between two tokens of a choice is told to."""
        return self._classes[priority_class].itl

    def first_token(self, standing: Standing, seconds: float, n_cached: int = 0) -> None:
        """``n_cached`` tokens of the prompt were not computed."""
        own = self._classes[standing.priority_class]
        own.ttft.observe(seconds)
        own.cached.inc(n_cached)

    def finished(self, standing: Standing, choice: Finished) -> None:
        own = self._classes[standing.priority_class]
        own.success[choice.reason if choice.reason in FINISHES else "error"].inc()
        own.prompt_size.observe(choice.n_prompt)
        own.output_size.observe(choice.n_output)
        own.queue.observe(choice.queued)
        if choice.n_output:
            own.prefill.observe(choice.prefill)
            own.decode.observe(choice.decode)
            own.inference.observe(choice.prefill + choice.decode)
            own.e2e.observe(choice.queued + choice.prefill + choice.decode)
        if choice.n_output > 1:
            own.tpot.observe(choice.decode / (choice.n_output - 1))
        self._count_tenant(standing.tenant or NO_TENANT, choice)

    def _count_tenant(self, tenant: str, choice: Finished) -> None:
        shown, gone = self._tenants.use(tenant, choice.n_prompt + choice.n_output)
        if gone is not None:
            for info in table.TENANTS:
                self._metrics.drop(info, self._model, gone)
        values = (1, choice.n_prompt, choice.n_output, choice.queued)
        for info, n in zip(table.TENANTS, values, strict=True):
            self._metrics.count(info, self._model, shown).inc(n)

    def choice_done(self, reason: str, standing: Standing = ALIKE) -> None:
        """One of which nothing else is known."""
        own = self._classes[standing.priority_class]
        own.success[reason if reason in FINISHES else "error"].inc()

    def request_done(self, seconds: float, standing: Standing = ALIKE) -> None:
        """One whose choices are not known one by one."""
        self._classes[standing.priority_class].e2e.observe(seconds)

    def judged(self, seconds: float | None) -> None:
        """A grammar, after ``seconds``; None: it was judged before."""
        if seconds is None:
            self._metrics.count(table.GRAMMAR_HITS, self._model).inc()
        else:
            self._metrics.histogram(table.GRAMMAR_COMPILE, self._model).observe(seconds)

    def refused(self, keyword: str) -> None:
        """A schema, for ``keyword``."""
        shown = keyword if keyword in KEYWORDS else OTHER
        self._metrics.count(table.SCHEMA_REFUSALS, self._model, shown).inc()

    def calls_made(self, tool_format: str, n_calls: int, *, is_cut: bool) -> None:
        """An answer with ``n_calls``, the last of which ``is_cut``."""
        for outcome, n in (("whole", n_calls - is_cut), ("cut", int(is_cut))):
            if n:
                self._metrics.count(table.TOOL_CALLS, self._model, tool_format, outcome).inc(n)

    def cancelled(self) -> None:
        """A client left before its answer was complete."""
        self._cancelled.inc()
        self.choice_done("abort")


class _ClassMetrics:
    """Of the requests of one class."""

    def __init__(self, metrics: Metrics, model: str, name: str) -> None:
        def histogram(info: MetricInfo) -> Histogram:
            return metrics.histogram(info, model, name)

        self.ttft = histogram(table.TTFT)
        self.itl = histogram(table.ITL)
        self.tpot = histogram(table.TPOT)
        self.e2e = histogram(table.E2E)
        self.queue = histogram(table.QUEUE)
        self.prefill = histogram(table.PREFILL)
        self.decode = histogram(table.DECODE)
        self.inference = histogram(table.INFERENCE)
        self.prompt_size = histogram(table.PROMPT_SIZE)
        self.output_size = histogram(table.OUTPUT_SIZE)
        self.cached = metrics.count(table.CACHED, model, name)
        self.success = {
            reason: metrics.count(table.SUCCESS, model, name, reason) for reason in FINISHES
        }
