"""What ``kvasir top`` shows, of two looks at /metrics and one at the KV cache."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from kvasir.cli.why_text import ask_why, why_text
from kvasir.config.controls import harmless, one_line
from kvasir.core.errors import KvasirError
from kvasir.lang.http import JsonServer

_SAMPLE = re.compile(r"(\w+)(?:\{([^}]*)\})? (\S+)")
_LE = re.compile(r'le="([^"]+)"')
READ = (
    "num_requests_running",
    "num_requests_waiting",
    "expected_queue_seconds",
    "generation_tokens_total",
    "prompt_tokens_total",
    "iterations_total",
    "step_seconds_total",
    "kv_cache_usage_perc",
    "prefix_cache_hit_rate",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "num_preemptions_total",
    "request_errors_total",
    "engine_restarts_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
)
"""What ``figures`` shows, of a tenth of all series."""
METRICS = "/metrics?" + "&".join(f"name%5B%5D=kvasir_{name}" for name in READ)
BAR = 30
ROWS = 12
"""Requests that are shown."""
WIDTH = 80
ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "blocks": lambda row: -row["blocks"],
    "tokens": lambda row: -row["tokens"],
    "id": lambda row: row["id"],
}


class ServerLook(NamedTuple):
    """One look at a server."""

    at: float
    """Seconds."""
    values: Mapping[str, float]
    """Sums over all labels, by name."""
    buckets: Mapping[str, Mapping[float, float]]
    """Of histograms, by their upper bounds."""
    held: Mapping[str, Any]
    """As /v1/kv_cache has it."""


class ServerWatch:
    """Looks at one server."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """Raises ConfigError for what is no address."""
        self._http = JsonServer(url, api_key)

    def why(self, request: str) -> str:
        """What made ``request`` slow; the error, where the server does not say."""
        try:
            return why_text(ask_why(self._http, request))
        except KvasirError as error:
            return error.message

    def look(self) -> ServerLook:
        """Raises ServerError."""
        text = self._http.text(METRICS)
        try:
            held = self._http.get("/v1/kv_cache")
        except KvasirError:  # its engine sleeps or restarts: the counters go on
            held = {}
        values, buckets = read_metrics(text)
        return ServerLook(time.monotonic(), values, buckets, held)


def read_metrics(text: str) -> tuple[dict[str, float], dict[str, dict[float, float]]]:
    """Our own names of Prometheus' text, added over their labels."""
    values: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None or not found[1].startswith("kvasir_"):
            continue
        name, number = found[1].removeprefix("kvasir_"), float(found[3])
        bound = _LE.search(found[2] or "")
        if name.endswith("_bucket") and bound is not None:
            counts = buckets.setdefault(name.removesuffix("_bucket"), {})
            edge = float(bound[1])
            counts[edge] = counts.get(edge, 0.0) + number
        else:
            values[name] = values.get(name, 0.0) + number
    return values, buckets


def figures(before: ServerLook, now: ServerLook) -> dict[str, Any]:
    """What is shown: rates between the two looks, levels of the second one."""
    seconds = max(1e-9, now.at - before.at)

    def rate(name: str) -> float:
        return max(0.0, now.values.get(name, 0.0) - before.values.get(name, 0.0)) / seconds

    drafted = rate("spec_decode_num_draft_tokens_total")
    accepted = rate("spec_decode_num_accepted_tokens_total")
    return {
        "running": int(now.values.get("num_requests_running", 0)),
        "waiting": int(now.values.get("num_requests_waiting", 0)),
        "queue_seconds": round(now.values.get("expected_queue_seconds", 0.0), 3),
        "output_tokens_per_second": round(rate("generation_tokens_total"), 1),
        "prompt_tokens_per_second": round(rate("prompt_tokens_total"), 1),
        "steps_per_second": round(rate("iterations_total"), 1),
        "busy": round(min(1.0, rate("step_seconds_total")), 3),
        "kv_used": round(now.values.get("kv_cache_usage_perc", 0.0), 4),
        "prefix_hit_rate": round(now.values.get("prefix_cache_hit_rate", 0.0), 4),
        "acceptance_rate": round(accepted / drafted, 3) if drafted else None,
        "preemptions": int(now.values.get("num_preemptions_total", 0)),
        "errors": int(now.values.get("request_errors_total", 0)),
        "engine_restarts": int(now.values.get("engine_restarts_total", 0)),
        "first_token_p50": quantile(before, now, "time_to_first_token_seconds", 0.5),
        "first_token_p99": quantile(before, now, "time_to_first_token_seconds", 0.99),
        "between_tokens_p50": quantile(before, now, "inter_token_latency_seconds", 0.5),
        "between_tokens_p99": quantile(before, now, "inter_token_latency_seconds", 0.99),
        "requests": list(now.held.get("requests") or []),
        "block_size": int(now.held.get("block_size") or 1),
    }


def quantile(before: ServerLook, now: ServerLook, name: str, share: float) -> float | None:
    """Seconds, of what came between the two looks; None when nothing did. As Prometheus'
    ``histogram_quantile`` interpolates."""
    then, counts = before.buckets.get(name, {}), now.buckets.get(name, {})
    edges = sorted(counts)
    fresh = [counts[edge] - then.get(edge, 0.0) for edge in edges]
    if not fresh or fresh[-1] <= 0:
        return None
    wanted, low, below = share * fresh[-1], 0.0, 0.0
    for edge, count in zip(edges, fresh, strict=True):
        if count >= wanted:
            if edge == float("inf"):
                return low
            inside = count - below
            return round(low + (edge - low) * ((wanted - below) / inside if inside else 1.0), 6)
        low, below = edge, count
    return low


def to_json(before: ServerLook, now: ServerLook) -> str:
    return msgspec.json.format(msgspec.json.encode(figures(before, now)), indent=2).decode() + "\n"


def as_text(
    before: ServerLook, now: ServerLook, order: str = "blocks", chosen: str = "", told: str = ""
) -> str:
    """24 lines of 80 columns. ``order``: of the requests, one of ``ORDERS``; ``chosen``: the id of
    the one that is marked; ``told``: in their place."""
    lines = [*_head(figures(before, now)), ""]
    rows = harmless(told).splitlines() if told else _requests(now, order, chosen)
    return "\n".join(line[:WIDTH] for line in [*lines, *rows[: ROWS + 2]]) + "\n"


def shown_ids(now: ServerLook, order: str) -> list[str]:
    """Of the requests that are shown, in their order."""
    rows = sorted(now.held.get("requests") or [], key=ORDERS[order])
    return [str(row["id"]) for row in rows[:ROWS]]


def _head(said: dict[str, Any]) -> list[str]:
    accepted = said["acceptance_rate"]
    return [
        f"running {said['running']}   waiting {said['waiting']} "
        f"(a new one about {said['queue_seconds']:.1f} s)   errors {said['errors']}   "
        f"restarts {said['engine_restarts']}",
        f"output  {said['output_tokens_per_second']:>9.1f} tok/s   "
        f"prompt {said['prompt_tokens_per_second']:>9.1f} tok/s   "
        f"steps {said['steps_per_second']:.1f}/s",
        f"first token   p50 {_ms(said['first_token_p50'])}   p99 {_ms(said['first_token_p99'])}",
        f"next token    p50 {_ms(said['between_tokens_p50'])}   "
        f"p99 {_ms(said['between_tokens_p99'])}",
        f"engine  {_bar(said['busy'])} busy",
        f"KV      {_bar(said['kv_used'])} in use, {said['preemptions']} preemptions",
        f"prefix  {_bar(said['prefix_hit_rate'])} found",
        "drafts  " + ("none" if accepted is None else f"{_bar(accepted)} accepted"),
    ]


def _requests(now: ServerLook, order: str, chosen: str) -> list[str]:
    lines = [f"{'  request':<44} {'tokens':>8} {'blocks':>7}  full"]
    rows = sorted(now.held.get("requests") or [], key=ORDERS[order])
    for row in rows[:ROWS]:
        full = row["tokens"] / max(1, row["blocks"] * int(now.held.get("block_size") or 1))
        name = ("> " if row["id"] == chosen else "  ") + one_line(str(row["id"]))[:42]
        lines.append(f"{name:<44} {row['tokens']:>8} {row['blocks']:>7}  {min(1.0, full):.0%}")
    if len(rows) > ROWS:
        lines.append(f"and {len(rows) - ROWS} more")
    return lines


def _bar(share: float) -> str:
    share = min(1.0, max(0.0, share))
    return f"[{('#' * round(BAR * share)).ljust(BAR, '.')}] {share:>4.0%}"


def _ms(seconds: float | None) -> str:
    return "      none" if seconds is None else f"{seconds * 1e3:>7.1f} ms"
