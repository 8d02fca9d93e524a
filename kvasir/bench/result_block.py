"""The result of a load as ``vllm bench serve`` prints it, for eyes and scripts that know it."""

from __future__ import annotations

from typing import Any

WIDTH = 50


def result_block(found: dict[str, Any]) -> str:
    """``found``: as ``summarize`` makes it."""
    lines = [" Serving Benchmark Result ".center(WIDTH, "=")]
    lines += [_row("Successful requests:", found["num_prompts"] - found["failed"])]
    lines += [_row("Failed requests:", found["failed"])]
    if found.get("max_concurrency"):
        lines.append(_row("Maximum request concurrency:", found["max_concurrency"]))
    if found["request_rate"]:
        lines.append(_row("Request rate configured (RPS):", found["request_rate"]))
    seconds, n_good = found["seconds"], found["num_prompts"] - found["failed"]
    total = found["input_tokens"] + found["output_tokens"]
    lines += [
        _row("Benchmark duration (s):", seconds),
        _row("Total input tokens:", found["input_tokens"]),
        _row("Total generated tokens:", found["output_tokens"]),
        _row("Request throughput (req/s):", n_good / seconds),
        _row("Output token throughput (tok/s):", found["output_tokens_per_second"]),
        _row("Total token throughput (tok/s):", total / seconds),
    ]
    for title, short, key in (
        ("Time to First Token", "TTFT", "seconds_to_first_token"),
        ("Time per Output Token (excl. 1st token)", "TPOT", "seconds_per_output_token"),
        ("Inter-token Latency", "ITL", "seconds_between_tokens"),
        ("End-to-end Latency", "E2EL", "seconds_per_request"),
    ):
        values = found.get(key)
        if values:
            lines.append(title.center(WIDTH, "-"))
            for name, part in (("Mean", "mean"), ("Median", "p50"), ("P99", "p99")):
                lines.append(_row(f"{name} {short} (ms):", 1e3 * values[part]))
    return "\n".join([*lines, "=" * WIDTH]) + "\n"


def _row(name: str, value: float) -> str:
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name:<40} {text:<9}".rstrip()
