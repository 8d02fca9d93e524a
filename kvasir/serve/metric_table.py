"""Every metric of ``/metrics``, once: for what counts, the exposition, dashboard, alerts and docs.

Our names begin with ``kvasir_``. ``vllm`` is the same thing's name in vLLM 0.32, where that has it:
without ``vllm:``, with ``model_name`` and ``engine`` and those of our labels that it has too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from kvasir.config.hardware import memory_used
from kvasir.core.messages import DiskStats, DrafterStats, EngineStats
from kvasir.serve.engine_counts import EngineCounts
from kvasir.serve.procfs import ThisProcess

Stats = TypeVar("Stats")
Kind = Literal["gauge", "counter", "histogram"]

LATENCIES = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0
)  # fmt: skip
"""Seconds."""
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Seconds between two tokens."""
LAGS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Seconds that the event loop is late."""
TOKENS = (1, 16, 64, 256, 1024, 4096, 16384, 65536)

MODEL = "model_name"
CLASS = "priority_class"
DRAFTER = "drafter"
TENANT = "tenant"
VLLM_LABELS = frozenset({MODEL, "finished_reason"})


class MetricInfo(msgspec.Struct, frozen=True):
    name: str
    """Without prefix, and a counter's without ``_total``."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = (MODEL,)
    vllm: str | None = None
    bounds: tuple[float, ...] = ()
    """Of the buckets of a histogram."""

    @property
    def exposed(self) -> str:
        """As Prometheus knows it; a histogram's series go on with ``_bucket``, ``_sum``,
        ``_count``."""
        return f"kvasir_{self.name}{'_total' if self.kind == 'counter' else ''}"


def _gauge(name: str, help: str, vllm: str | None = None) -> MetricInfo:
    return MetricInfo(name, "gauge", help, vllm=vllm)


def _counter(name: str, help: str, *labels: str, vllm: str | None = None) -> MetricInfo:
    return MetricInfo(name, "counter", help, (MODEL, *labels), vllm)


def _histogram(name: str, help: str, bounds: tuple[float, ...]) -> MetricInfo:
    """vLLM has the name too."""
    return MetricInfo(name, "histogram", help, (MODEL, CLASS), name, bounds)


Row = tuple[MetricInfo, Callable[[Stats], float]]


def _usage(stats: EngineStats) -> float:
    """Cached blocks count as unused: they are given to whoever needs them."""
    n_available = stats.blocks_free + stats.blocks_cached
    return 1 - n_available / stats.blocks_total if stats.blocks_total else 0.0


def _hits(stats: EngineStats) -> float:
    return stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0


def _same(name: str, help: str) -> MetricInfo:
    """vLLM has the name too."""
    return _gauge(name, help, vllm=name)


def _same_counter(name: str, help: str, *labels: str) -> MetricInfo:
    return _counter(name, help, *labels, vllm=name)


ENGINE: tuple[Row[EngineStats], ...] = (
    (_same("num_requests_running", "Choices being computed."), lambda s: s.n_running),
    (_same("num_requests_waiting", "Choices waiting for slot or blocks."), lambda s: s.n_waiting),
    (_gauge("num_prompt_tokens_waiting", "Prompt tokens not started."), lambda s: s.tokens_waiting),
    (
        _gauge("expected_queue_seconds", "Until a request of now would start."),
        lambda s: s.last_wait,
    ),
    (_gauge("kv_cache_blocks", "Blocks of the KV memory."), lambda s: s.blocks_total),
    (
        _gauge("kv_cache_blocks_cached", "Blocks kept for later requests."),
        lambda s: s.blocks_cached,
    ),
    (_same("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1."), _usage),
    (_gauge("prefix_cache_hit_rate", "Share of tokens looked up that were found."), _hits),
    (
        _same_counter("prompt_tokens", "Prompt tokens received, cached too."),
        lambda s: s.prompt_tokens,
    ),
    (_same_counter("generation_tokens", "Tokens generated."), lambda s: s.output_tokens),
    (_same_counter("num_preemptions", "Requests preempted."), lambda s: s.n_preemptions),
    (
        _same_counter("prefix_cache_queries", "Tokens looked up in the prefix cache."),
        lambda s: s.prefix_queries,
    ),
    (
        _same_counter("prefix_cache_hits", "Tokens that the prefix cache gave."),
        lambda s: s.prefix_hits,
    ),
    (_counter("deadlines_unreachable", "Refused for their deadline."), lambda s: s.n_unreachable),
    (_counter("deadlines_exceeded", "Ended by their deadline."), lambda s: s.n_expired),
    (_counter("iterations", "Engine steps."), lambda s: s.step),
    (_counter("grammar_masks", "Masks made for constrained draws."), lambda s: s.n_masks),
    (_counter("grammar_mask_seconds", "Time that these took."), lambda s: s.mask_seconds),
    (_counter("grammar_forced_tokens", "Tokens that masks forced."), lambda s: s.n_forced),
    (_same_counter("spec_decode_num_drafts", "Drafts computed."), lambda s: s.n_drafts),
    (
        _same_counter("spec_decode_num_draft_tokens", "Drafted tokens computed."),
        lambda s: s.n_drafted,
    ),
    (
        _same_counter("spec_decode_num_accepted_tokens", "Drafted tokens that were drawn."),
        lambda s: s.n_accepted,
    ),
    (
        _counter("spec_decode_draft_seconds", "Time that a draft model took."),
        lambda s: s.draft_seconds,
    ),
    (
        _gauge("spec_decode_seconds_won", "Won by drafts, or lost: an estimate."),
        lambda s: s.seconds_won,
    ),
    (_counter("step_seconds", "Time inside the executor."), lambda s: s.step_seconds),
)
"""Read from the engine's last message."""
DRAFTERS: tuple[Row[DrafterStats], ...] = (
    (
        _counter("spec_decode_drafter_drafts", "Drafts computed, by drafter.", DRAFTER),
        lambda s: s.n_drafts,
    ),
    (
        _counter("spec_decode_drafter_draft_tokens", "Their tokens.", DRAFTER),
        lambda s: s.n_drafted,
    ),
    (
        _counter("spec_decode_drafter_accepted_tokens", "Those that were drawn.", DRAFTER),
        lambda s: s.n_accepted,
    ),
)
DISK: tuple[Row[DiskStats], ...] = (
    (_gauge("kv_disk_bytes", "Bytes of the files of saved KV blocks."), lambda s: s.n_bytes),
    (_counter("kv_disk_blocks_stored", "KV blocks written to disk."), lambda s: s.n_stored),
    (_counter("kv_disk_blocks_loaded", "KV blocks read for a request."), lambda s: s.n_loaded),
    (_counter("kv_disk_blocks_dropped", "KV blocks not written."), lambda s: s.n_dropped),
    (
        _counter("kv_disk_blocks_damaged", "KV blocks whose checksum was wrong."),
        lambda s: s.n_damaged,
    ),
    (_counter("kv_disk_hits", "Tokens of prefix hits that came from disk."), lambda s: s.n_hit),
)
"""The same, with ``--kv-disk``."""
LIFE: tuple[Row[EngineCounts], ...] = (
    (
        _counter("engine_deaths", "Engine processes that ended unasked, hang kills included."),
        lambda c: c.deaths,
    ),
    (
        _counter("engine_hang_kills", "Engine processes killed as a step did not end."),
        lambda c: c.hang_kills,
    ),
    (_counter("engine_restarts", "Engine processes after the first one."), lambda c: c.restarts),
    (
        _counter("requests_replayed", "Choices that another engine process went on with."),
        lambda c: c.replays,
    ),
    (_counter("engine_sleeps", "Times that the engine was put to sleep."), lambda c: c.sleeps),
    (
        _gauge("engine_sleeping", "1 while the engine sleeps and its memory is given back."),
        lambda c: c.is_asleep,
    ),
)
"""Of the engine process, as its keeper counts."""
PROCESS: tuple[Row[ThisProcess], ...] = (
    (
        MetricInfo("api_cpu_seconds", "counter", "CPU time of the API process.", ()),
        lambda p: p.cpu_seconds(),
    ),
    (
        MetricInfo("api_resident_memory_bytes", "gauge", "Memory of the API process.", ()),
        lambda p: p.resident_bytes(),
    ),
    (
        MetricInfo("api_open_fds", "gauge", "Open files of the API process.", ()),
        lambda p: p.n_open_files(),
    ),
    (
        MetricInfo("memory_used_ratio", "gauge", "Share of the machine's or group's memory.", ()),
        lambda p: memory_used(),
    ),
)
TTFT = _histogram("time_to_first_token_seconds", "Arrival to first token.", LATENCIES)
ITL = _histogram("inter_token_latency_seconds", "Token to token.", GAPS)
TPOT = _histogram("request_time_per_output_token_seconds", "Mean ITL of a choice.", GAPS)
E2E = _histogram("e2e_request_latency_seconds", "Arrival to last token.", LATENCIES)
QUEUE = _histogram("request_queue_time_seconds", "Arrival to start.", LATENCIES)
PREFILL = _histogram("request_prefill_time_seconds", "Start to first token.", LATENCIES)
DECODE = _histogram("request_decode_time_seconds", "First to last token.", LATENCIES)
INFERENCE = _histogram("request_inference_time_seconds", "Start to last token.", LATENCIES)
PROMPT_SIZE = _histogram("request_prompt_tokens", "Prompt tokens of a choice.", TOKENS)
OUTPUT_SIZE = _histogram("request_generation_tokens", "Tokens generated of a choice.", TOKENS)
SUCCESS = _same_counter("request_success", "Choices finished.", CLASS, "finished_reason")
CACHED = _same_counter("prompt_tokens_cached", "Prompt tokens not computed.", CLASS)
CANCELLED = _counter("requests_cancelled", "Requests whose client left.")
TENANT_REQUESTS = _counter("tenant_requests", "Choices finished, of a tenant.", TENANT)
TENANT_PROMPTS = _counter("tenant_prompt_tokens", "Prompt tokens of these.", TENANT)
TENANT_OUTPUTS = _counter("tenant_generation_tokens", "Tokens generated of these.", TENANT)
TENANT_WAITS = _counter("tenant_queue_seconds", "Time that these waited for their start.", TENANT)
TENANTS = (TENANT_REQUESTS, TENANT_PROMPTS, TENANT_OUTPUTS, TENANT_WAITS)
GRAMMAR_COMPILE = MetricInfo(
    "grammar_compile_seconds",
    "histogram",
    "Until a new grammar was judged, waiting included.",
    bounds=LATENCIES,
)
GRAMMAR_HITS = _counter("grammar_cache_hits", "Grammars that were judged before.")
SCHEMA_REFUSALS = _counter("schema_refusals", "Schemas refused, by keyword.", "keyword")
TOOL_CALLS = _counter("tool_calls", "Calls of answers, whole or cut.", "format", "outcome")
ERRORS = MetricInfo("request_errors", "counter", "Failed and refused requests.", ("code",))
LAG = MetricInfo(
    "event_loop_lag_seconds", "histogram", "How late the event loop is.", (), bounds=LAGS
)
BUILD = MetricInfo("build_info", "gauge", "Always 1.", ("version",))
COUNTED = (
    TTFT, ITL, TPOT, E2E, QUEUE, PREFILL, DECODE, INFERENCE, PROMPT_SIZE, OUTPUT_SIZE, SUCCESS,
    CACHED, CANCELLED, *TENANTS, GRAMMAR_COMPILE, GRAMMAR_HITS, SCHEMA_REFUSALS, TOOL_CALLS, ERRORS,
    LAG, BUILD,
)  # fmt: skip
"""Where they happen, in the API process."""
READ: tuple[MetricInfo, ...] = tuple(
    info for rows in (ENGINE, DRAFTERS, DISK, LIFE, PROCESS) for info, _ in rows
)
METRICS = (*READ, *COUNTED)
