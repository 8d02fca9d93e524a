"""What an operator is told of, as Prometheus' alerts."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.expressions import coded, quantile, rate, series


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expr: str
    lasts: str
    """How long ``expr`` must hold."""
    severity: str
    summary: str


ALERTS = (
    Alert(
        "KvasirAbsent",
        f"absent({series('build_info')})",
        "2m",
        "critical",
        "No Kvasir server is scraped.",
    ),
    Alert(
        "KvasirEngineDied",
        f"increase({series('engine_deaths')}[10m]) > 0",
        "0m",
        "warning",
        "The engine of {{ $labels.model_name }} died and was replaced; the log says how.",
    ),
    Alert(
        "KvasirEngineKeepsDying",
        f"increase({series('engine_deaths')}[15m]) > 2",
        "0m",
        "critical",
        "The engine of {{ $labels.model_name }} dies again and again.",
    ),
    Alert(
        "KvasirEngineHung",
        f"increase({series('engine_hang_kills')}[10m]) > 0",
        "0m",
        "warning",
        "The engine of {{ $labels.model_name }} did not go on and was killed: look for a stopped "
        "process, or a machine that swaps.",
    ),
    Alert(
        "KvasirFailsRequests",
        coded("5m", "engine_.*|internal_error|model_numerics"),
        "1m",
        "critical",
        "Requests fail with {{ $labels.code }}: the log says why.",
    ),
    Alert(
        "KvasirRefusesRequests",
        coded("5m", "queue_full|capacity"),
        "5m",
        "warning",
        "Requests are turned away with {{ $labels.code }}: add a server.",
    ),
    Alert(
        "KvasirQueueLong",
        f"{series('expected_queue_seconds')} > 30",
        "5m",
        "warning",
        "{{ $labels.model_name }}: a request waits {{ $value | humanizeDuration }} for its start.",
    ),
    Alert(
        "KvasirFirstTokenLate",
        quantile(0.99, "time_to_first_token_seconds", "5m") + " > 30",
        "10m",
        "warning",
        "1 of 100 first tokens of {{ $labels.model_name }} takes over 30 s.",
    ),
    Alert(
        "KvasirTokensLate",
        quantile(0.99, "inter_token_latency_seconds", "5m") + " > 0.5",
        "10m",
        "warning",
        "1 of 100 tokens of {{ $labels.model_name }} comes over 500 ms after the one before: lower "
        "--itl-target-ms or --max-num-seqs.",
    ),
    Alert(
        "KvasirPreempts",
        rate("num_preemptions", "5m") + " > 1",
        "10m",
        "warning",
        "KV memory is short for {{ $labels.model_name }}: requests are preempted each second.",
    ),
    Alert(
        "KvasirEventLoopLate",
        quantile(0.99, "event_loop_lag_seconds", "5m") + " > 0.1",
        "5m",
        "warning",
        "The API process is over 100 ms late: it lacks CPU.",
    ),
    Alert(
        "KvasirMemoryShort",
        f"{series('memory_used_ratio')} > 0.95",
        "5m",
        "critical",
        "Over 95 % of the memory is used: the kernel may kill the engine.",
    ),
    Alert(
        "KvasirDiskDamaged",
        f"increase({series('kv_disk_blocks_damaged')}[1h]) > 0",
        "0m",
        "warning",
        "KV blocks read from disk had wrong checksums: look at the disk.",
    ),
)
