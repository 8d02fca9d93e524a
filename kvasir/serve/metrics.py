"""Prometheus metrics under vLLM's names, so that its dashboards work, and under ``kvasir:`` as
well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kvasir.core.messages import DiskStats, EngineStats

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()
LABELS = ("model_name",)
SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
FINISHES = ("stop", "length", "abort", "error")
CODES = frozenset(
    {
        "invalid_value", "invalid_json", "unknown_parameter", "unsupported_parameter",
        "model_not_found",
        "context_length_exceeded", "unsupported_media_type", "body_too_large", "invalid_api_key",
        "not_found", "method_not_allowed", "capacity", "engine_down", "engine_fault",
        "model_numerics",
        "no_token_left", "slow_reader", "queue_full",
        "deadline_unreachable", "deadline_exceeded", "request_timeout",
        "draining", "starting", "internal_error",
    }
)  # fmt: skip
"""Values of the label ``code``; anything else is counted as "other"."""

Stats = TypeVar("Stats")
Family = tuple[str, str, Callable[[Stats], float]]
GAUGES: tuple[Family[EngineStats], ...] = (
    ("num_requests_running", "Choices being computed.", lambda s: s.n_running),
    ("num_requests_waiting", "Choices waiting for a slot or blocks.", lambda s: s.n_waiting),
    ("num_prompt_tokens_waiting", "Prompt tokens not started.", lambda s: s.tokens_waiting),
    ("expected_queue_seconds", "Until a request of now would start.", lambda s: s.last_wait),
    ("kv_cache_blocks_cached", "Blocks kept for later requests.", lambda s: s.blocks_cached),
    ("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", lambda s: _usage(s)),
    ("prefix_cache_hit_rate", "Share of tokens looked up that were found.", lambda s: _hits(s)),
)
COUNTERS: tuple[Family[EngineStats], ...] = (
    ("prompt_tokens", "Prompt tokens received, cached ones included.", lambda s: s.prompt_tokens),
    ("generation_tokens", "Tokens generated.", lambda s: s.output_tokens),
    ("num_preemptions", "Requests preempted.", lambda s: s.n_preemptions),
    ("prefix_cache_queries", "Tokens looked up in the prefix cache.", lambda s: s.prefix_queries),
    ("prefix_cache_hits", "Tokens that the prefix cache gave.", lambda s: s.prefix_hits),
    ("deadlines_unreachable", "Refused for their deadline.", lambda s: s.n_unreachable),
    ("deadlines_exceeded", "Ended by their deadline.", lambda s: s.n_expired),
    ("iterations", "Engine steps.", lambda s: s.step),
)
OLD_NAMES = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "prefix_cache_queries": "gpu_prefix_cache_queries",
    "prefix_cache_hits": "gpu_prefix_cache_hits",
    "prefix_cache_hit_rate": "gpu_prefix_cache_hit_rate",
}
"""Names of earlier vLLM releases, which dashboards still ask for."""
DISK_GAUGES: tuple[Family[DiskStats], ...] = (
    ("kv_disk_bytes", "Bytes of the files of saved KV blocks.", lambda s: s.n_bytes),
)
DISK_COUNTERS: tuple[Family[DiskStats], ...] = (
    ("kv_disk_blocks_stored", "KV blocks written to disk.", lambda s: s.n_stored),
    ("kv_disk_blocks_loaded", "KV blocks read from disk for a request.", lambda s: s.n_loaded),
    ("kv_disk_blocks_dropped", "KV blocks that were not written.", lambda s: s.n_dropped),
    ("kv_disk_blocks_damaged", "KV blocks whose checksum was wrong.", lambda s: s.n_damaged),
    ("kv_disk_hits", "Prefix cache hits that came from disk, in tokens.", lambda s: s.n_hit),
)


def _usage(stats: EngineStats) -> float:
    """Cached blocks count as unused: they are given to whoever needs them."""
    n_available = stats.blocks_free + stats.blocks_cached
    return 1 - n_available / stats.blocks_total if stats.blocks_total else 0.0


def _hits(stats: EngineStats) -> float:
    return stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0


class ModelMetrics:
    """Counts what the API process sees of one model."""

    def __init__(self, families: _Families, model: str) -> None:
        self._ttft = families.ttft.labels(model)
        self._itl = families.itl.labels(model)
        self._e2e = families.e2e.labels(model)
        self._cancelled = families.cancelled.labels(model)
        self._success = {finish: families.success.labels(model, finish) for finish in FINISHES}

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._itl.observe(seconds)

    def request_done(self, seconds: float) -> None:
        self._e2e.observe(seconds)

    def choice_done(self, finish: str) -> None:
        self._success[finish if finish in FINISHES else "error"].inc()

    def cancelled(self) -> None:
        self._cancelled.inc()
        self.choice_done("abort")


class Metrics:
    """Of a server: one part for each model, whose engine's counters are read from its last message
    at each scrape."""

    def __init__(self) -> None:
        inner = CollectorRegistry(auto_describe=False)
        self._families = _Families(inner)
        self._errors = Counter(
            "kvasir:request_errors", "Failed requests.", ("code",), registry=inner
        )
        self._engines: dict[str, Callable[[], EngineStats]] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_BothNames(inner, _EngineCollector(self._engines)))

    def of(self, model: str, stats: Callable[[], EngineStats]) -> ModelMetrics:
        """The part of one more ``model``."""
        self._engines[model] = stats
        return ModelMetrics(self._families, model)

    def count_error(self, code: str) -> None:
        self._errors.labels(code if code in CODES else "other").inc()

    def text(self) -> bytes:
        """The exposition format, UTF-8."""
        return generate_latest(self._registry)


class _Families:
    """Each with a label for the model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"kvasir:{name}", text, LABELS, registry=registry, buckets=SECONDS)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"kvasir:{name}", text, (*LABELS, *labels), registry=registry)

        self.ttft = histogram("time_to_first_token_seconds", "Request to first token.")
        self.itl = histogram("inter_token_latency_seconds", "Token to token of one choice.")
        self.e2e = histogram("e2e_request_latency_seconds", "Request to last token.")
        self.success = counter("request_success", "Choices finished.", "finished_reason")
        self.cancelled = counter("requests_cancelled", "Requests whose client left.")


class _EngineCollector(Collector):
    """One sample of every family for each model."""

    def __init__(self, engines: Mapping[str, Callable[[], EngineStats]]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        stats = {model: read() for model, read in self._engines.items()}
        yield from _families(GAUGES, COUNTERS, stats)
        disks = {model: each.disk for model, each in stats.items() if each.disk is not None}
        if disks:
            yield from _families(DISK_GAUGES, DISK_COUNTERS, disks)


def _families(
    gauges: tuple[Family[Stats], ...],
    counters: tuple[Family[Stats], ...],
    stats: Mapping[str, Stats],
) -> Iterator[Metric]:
    families = ((gauges, GaugeMetricFamily), (counters, CounterMetricFamily))
    for rows, kind in families:
        for name, text, value in rows:
            family = kind(f"kvasir:{name}", text, labels=LABELS)
            for model, each in stats.items():
                family.add_metric([model], value(each))
            yield family


class _BothNames(Collector):
    """Every family as it is, with the prefix of vLLM, and under its old name there."""

    def __init__(self, inner: CollectorRegistry, engine: _EngineCollector) -> None:
        self._inner = inner
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        for metric in (*self._engine.collect(), *self._inner.collect()):
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric
            name = metric.name.removeprefix("kvasir:")
            yield _renamed(metric, f"vllm:{name}")
            if name in OLD_NAMES:
                yield _renamed(metric, f"vllm:{OLD_NAMES[name]}")


def _renamed(metric: Metric, name: str) -> Metric:
    copy = Metric(name, metric.documentation, metric.type)
    copy.samples = [
        Sample(name + sample.name.removeprefix(metric.name), sample.labels, sample.value)
        for sample in metric.samples
    ]
    return copy
