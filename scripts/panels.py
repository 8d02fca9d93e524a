"""Panels of the dashboard, in their order."""

from __future__ import annotations

from dataclasses import dataclass

from scripts import expressions

WINDOW = "$__rate_interval"
CHOSEN = "$model"
NAME = "{{model_name}}"
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    """Of Grafana."""
    lines: tuple[tuple[str, str], ...]
    """Legend and expression."""


def _now(title: str, unit: str, **legends: str) -> Panel:
    """Legends by the name of what they say the value of."""
    found = [(text, expressions.series(name, CHOSEN)) for name, text in legends.items()]
    return Panel(title, unit, tuple(found))


def _rates(title: str, unit: str, **legends: str) -> Panel:
    found = [(text, expressions.rate(name, WINDOW, CHOSEN)) for name, text in legends.items()]
    return Panel(title, unit, tuple(found))


def _quantiles(title: str, name: str) -> Panel:
    found = [(f"p{100 * q:.0f}", expressions.quantile(q, name, WINDOW, CHOSEN)) for q in QUANTILES]
    return Panel(title, "s", tuple(found))


def _by(title: str, name: str, label: str) -> Panel:
    rate = expressions.rate(name, WINDOW, CHOSEN)
    return Panel(title, "short", ((f"{{{{{label}}}}}", f"sum by ({label}) ({rate})"),))


PANELS = (
    _quantiles("Time to first token", "time_to_first_token_seconds"),
    _quantiles("Between two tokens", "inter_token_latency_seconds"),
    _quantiles("Arrival to last token", "e2e_request_latency_seconds"),
    _quantiles("Queue", "request_queue_time_seconds"),
    _quantiles("Prefill", "request_prefill_time_seconds"),
    _quantiles("Decode", "request_decode_time_seconds"),
    _rates("Tokens a second", "short", generation_tokens="generated", prompt_tokens="of prompts"),
    _now("Choices", "short", num_requests_running="that run", num_requests_waiting="that wait"),
    _now("Expected queue", "s", expected_queue_seconds=NAME),
    _now("KV memory in use", "percentunit", kv_cache_usage_perc=NAME),
    _now("Prefix hits", "percentunit", prefix_cache_hit_rate=NAME),
    _rates("Preemptions a second", "short", num_preemptions=NAME),
    _by("Choices finished a second", "request_success", "finished_reason"),
    _by("Errors a second", "request_errors", "code"),
    _by("Tokens a second by tenant", "tenant_generation_tokens", "tenant"),
    _now(
        "Engine processes",
        "short",
        engine_deaths="deaths",
        engine_hang_kills="hangs",
        requests_replayed="replayed choices",
    ),
    _quantiles("Lateness of the event loop", "event_loop_lag_seconds"),
    _quantiles("New grammars judged", "grammar_compile_seconds"),
    _rates(
        "Grammars",
        "short",
        grammar_cache_hits="judged before, a second",
        grammar_masks="masks a second",
        grammar_mask_seconds="of the time",
    ),
    _by("Schemas refused a second", "schema_refusals", "keyword"),
    _by("Calls a second", "tool_calls", "outcome"),
    _now("Memory used", "percentunit", memory_used_ratio="of the machine or group"),
)
