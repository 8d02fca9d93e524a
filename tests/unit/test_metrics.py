"""What ``/metrics`` says: names, sums, and no more series than were planned."""

from __future__ import annotations

import random
import shutil
import subprocess
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvasir.core.messages import DiskStats, EngineStats
from kvasir.core.request import Standing
from kvasir.serve.engine_counts import EngineCounts
from kvasir.serve.metric_table import METRICS
from kvasir.serve.metrics import MAX_CODES, Finished, Metrics
from kvasir.serve.stopwatch import Stopwatch
from kvasir.serve.top import MAX_SHOWN, OTHER, TopNames

STATS = EngineStats(
    n_running=3,
    blocks_total=8,
    blocks_free=1,
    blocks_cached=1,
    output_tokens=7,
    prefix_queries=40,
    prefix_hits=32,
    disk=DiskStats(n_bytes=5),
)
ENDED = Finished("stop", n_prompt=100, n_output=11, queued=0.2, prefill=0.3, decode=2.0)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, as Prometheus' own parser reads it."""
    families = text_string_to_metric_families(metrics.text().decode())
    found = [
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in families
        for sample in family.samples
    ]
    assert len(dict(found)) == len(found), "a series occurs twice"
    return dict(found)


def of(name: str, metrics: Metrics, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def test_our_names_and_those_of_vllm() -> None:
    metrics = Metrics("both")
    measured = metrics.of("m", lambda: STATS)
    for name in ("realtime", "standard", "standard"):
        measured.finished(Standing(priority_class=name), ENDED)  # type: ignore[arg-type]
    vllm = {"model_name": "m", "engine": "0"}
    assert of("kvasir_num_requests_running", metrics, model_name="m") == 3
    assert of("vllm:num_requests_running", metrics, **vllm) == 3
    assert of("vllm:kv_cache_usage_perc", metrics, **vllm) == 0.75
    assert of("vllm:generation_tokens_total", metrics, **vllm) == 7
    assert of("vllm:request_success_total", metrics, **vllm, finished_reason="stop") == 3
    assert of("vllm:request_decode_time_seconds_sum", metrics, **vllm) == 6
    assert of("vllm:request_decode_time_seconds_bucket", metrics, **vllm, le="1.0") == 0
    assert of("vllm:request_decode_time_seconds_bucket", metrics, **vllm, le="2.5") == 3
    assert of("kvasir_prefix_cache_hit_rate", metrics, model_name="m") == 0.8
    names = {name for name, _ in samples(metrics)}
    assert "vllm:prefix_cache_hit_rate" not in names  # vLLM has no such metric
    assert not any(name.startswith("vllm:gpu_") for name in names)


@pytest.mark.parametrize(("prefix", "begins"), [("kvasir", "kvasir_"), ("vllm", "vllm:")])
def test_the_prefix_selects(prefix: str, begins: str) -> None:
    metrics = Metrics(prefix)
    metrics.of("m", lambda: STATS)
    assert all(name.startswith(begins) for name, _ in samples(metrics))


def test_a_choice_is_counted_in_its_class_and_for_its_tenant() -> None:
    metrics = Metrics("kvasir")
    measured = metrics.of("m", EngineStats)
    measured.finished(Standing(priority_class="batch", tenant="alice"), ENDED)
    batch = {"model_name": "m", "priority_class": "batch"}
    for name, total in {
        "request_queue_time_seconds": 0.2,
        "request_prefill_time_seconds": 0.3,
        "request_decode_time_seconds": 2.0,
        "request_inference_time_seconds": 2.3,
        "request_time_per_output_token_seconds": 0.2,
        "request_prompt_tokens": 100,
        "request_generation_tokens": 11,
        "e2e_request_latency_seconds": 2.5,
    }.items():
        assert of(f"kvasir_{name}_sum", metrics, **batch) == pytest.approx(total)
        assert of(f"kvasir_{name}_count", metrics, **batch) == 1
        assert of(f"kvasir_{name}_count", metrics, **{**batch, "priority_class": "standard"}) == 0
    alice = {"model_name": "m", "tenant": "alice"}
    assert of("kvasir_tenant_requests_total", metrics, **alice) == 1
    assert of("kvasir_tenant_prompt_tokens_total", metrics, **alice) == 100
    assert of("kvasir_tenant_generation_tokens_total", metrics, **alice) == 11
    assert of("kvasir_tenant_queue_seconds_total", metrics, **alice) == 0.2


def test_the_life_of_an_engine_is_counted() -> None:
    metrics, counts = Metrics("kvasir"), EngineCounts()
    metrics.of("m", EngineStats, counts)
    counts.deaths, counts.hang_kills, counts.replays, counts.is_asleep = 3, 1, 64, True
    assert of("kvasir_engine_deaths_total", metrics, model_name="m") == 3
    assert of("kvasir_engine_hang_kills_total", metrics, model_name="m") == 1
    assert of("kvasir_requests_replayed_total", metrics, model_name="m") == 64
    assert of("kvasir_engine_sleeping", metrics, model_name="m") == 1


def test_r107_ten_thousand_names_add_no_series() -> None:
    metrics = Metrics("both")
    measured = metrics.of("m", EngineStats)
    measured.finished(Standing(tenant="first"), ENDED)
    metrics.count_error("queue_full")
    before = len(samples(metrics))
    for i in range(10_000):
        measured.finished(Standing(tenant=f'user {i}\n"\\'), ENDED)
        measured.choice_done(f"finish {i}")
        metrics.count_error(f"code {i}")
    after = samples(metrics)
    assert len(after) <= before + 4 * MAX_SHOWN + MAX_CODES
    tenants = {labels for name, labels in after if name == "kvasir_tenant_requests_total"}
    assert len(tenants) <= MAX_SHOWN + 1
    errors = [n for (name, _), n in after.items() if name == "kvasir_request_errors_total"]
    assert sum(errors) == 10_001
    requests = [n for (name, _), n in after.items() if name == "kvasir_tenant_requests_total"]
    assert sum(requests) <= 10_001


def test_who_uses_much_is_shown_among_ten_thousand_who_do_not() -> None:
    names, draw = TopNames(), random.Random(5)
    for i in range(500):  # these take all places first
        names.use(f"early {i}", 1)
    for i in range(20_000):
        names.use(f"user {i}", 1)
        if draw.random() < 0.2:
            names.use("heavy", 5)
    assert names.use("heavy", 5)[0] == "heavy"
    assert names.use("user 30000", 1)[0] == OTHER
    assert len(names.shown) <= MAX_SHOWN


def test_a_name_that_faded_gives_its_series_to_one_that_uses_more() -> None:
    names = TopNames(max_shown=1)
    assert names.use("old", 10) == ("old", None)
    assert names.use("new", 100) == (OTHER, None)
    assert names.use("new", 10_000) == ("new", "old")
    assert names.use("old", 1) == (OTHER, None)


def test_a_stopwatch_tells_queue_prefill_and_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    metrics = Metrics("kvasir")
    measured = metrics.of("m", EngineStats)
    starts = {0: 101.0, 1: 101.5}
    watch = Stopwatch(measured, Standing(), lambda choice: 7, 100.0, starts.get)
    for seconds, choice in ((103.0, 0), (103.5, 1), (104.0, 0), (105.0, 1)):
        now[0] = seconds
        watch.tokens(choice, 1, n_cached=4 if choice == 0 else 0)
    watch.finished(0, "stop")
    watch.finished(1, "length")
    labels = {"model_name": "m", "priority_class": "standard"}
    sums = {
        name: of(f"kvasir_{name}_sum", metrics, **labels)
        for name in (
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_prompt_tokens",
        )
    }
    assert list(sums.values()) == [3.0 + 3.5, 1.0 + 1.5, 1.0 + 1.5, 2.0 + 2.0, 1.0 + 1.5, 14]
    assert of("kvasir_prompt_tokens_cached_total", metrics, **labels) == 4
    assert watch.report() == {
        "queue_time_ms": 1000,
        "prefill_time_ms": 2000,
        "time_to_first_token_ms": 2000,
        "generation_time_ms": 2000,
        "e2e_time_ms": 5000,
        "mean_itl_ms": 1250,
        "tokens_per_second": 1.0,
    }


def test_every_metric_is_in_the_table_once_and_has_all_its_series() -> None:
    assert len({info.name for info in METRICS}) == len(METRICS)
    metrics = Metrics("kvasir")
    metrics.of("m", lambda: STATS).finished(Standing(tenant="a"), ENDED)
    metrics.count_error("x")
    text = metrics.text().decode()
    for info in METRICS:
        assert f"# HELP {info.exposed} {info.help}\n# TYPE {info.exposed} {info.kind}\n" in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_promtool_is_content() -> None:
    metrics = Metrics("kvasir")
    metrics.of("m", lambda: STATS).finished(Standing(tenant='a"\\\n'), ENDED)
    metrics.count_error("x")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics.text(), capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_a_scrape_each_second_takes_half_a_percent_of_a_core_at_most() -> None:
    metrics = Metrics("both")
    measured = metrics.of("m", lambda: STATS)
    for i in range(1000):
        measured.finished(Standing(tenant=f"t{i % 20}"), ENDED)
    took = []
    for _ in range(20):
        began = time.thread_time()
        metrics.text()
        took.append(time.thread_time() - began)
    assert min(took) < 0.005
