"""One request at a time: decode rate, prefill rates, time to the first token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvasir.bench.fingerprint import Meter
from kvasir.bench.report import outside_native, summary
from kvasir.bench.workload import TokenTimes, Workload


@dataclass(frozen=True, slots=True)
class LatencySettings:
    input_len: int = 32
    """Prompt tokens before the measured decode."""
    output_len: int = 128
    prefill: tuple[int, ...] = (512, 2048)
    """Prompt lengths whose prefill is measured; one without room is reported as missing."""
    repeat: int = 3


def measure_latency(workload: Workload, settings: LatencySettings) -> dict[str, Any]:
    """Rates in tokens per second, times in seconds. A first run of each shape only warms up."""
    room = workload.built.config.sizes.max_model_len
    results = {"decode": _decode(workload, settings)}
    for n_prompt in settings.prefill:
        fits = n_prompt + 1 <= room
        results[f"prefill_{n_prompt}"] = (
            _prefill(workload, n_prompt, settings.repeat)
            if fits
            else {"missing": f"{n_prompt + 1} tokens exceed max_model_len {room}"}
        )
    return results


def _runs(
    workload: Workload, n_prompt: int, n_output: int, repeat: int
) -> tuple[list[TokenTimes], list[float]]:
    """Timelines and foreign CPU shares of ``repeat`` runs, each with a prompt of its own."""
    timelines, foreign = [], []
    for key in range(1, repeat + 1):
        with Meter() as meter:
            timelines += workload.run(1, n_prompt, n_output, key)
        foreign.append(meter.foreign)
    return timelines, foreign


def _decode(workload: Workload, settings: LatencySettings) -> dict[str, Any]:
    n_in, n_out = settings.input_len, settings.output_len
    workload.run(1, n_in, min(n_out, 4), key=0)
    native = workload.native_seconds
    timelines, foreign = _runs(workload, n_in, n_out, settings.repeat)
    native = workload.native_seconds - native
    return {
        "input_len": n_in,
        "output_len": n_out,
        "tokens_per_second": summary([timeline.decode_rate for timeline in timelines]),
        "seconds_to_first_token": summary([timeline.first for timeline in timelines], 5),
        "seconds": summary([timeline.last for timeline in timelines], 4),
        "outside_native": outside_native(native, sum(timeline.last for timeline in timelines)),
        "foreign": foreign,
    }


def _prefill(workload: Workload, n_prompt: int, repeat: int) -> dict[str, Any]:
    workload.run(1, n_prompt, 1, key=0)
    timelines, foreign = _runs(workload, n_prompt, 1, repeat)
    return {
        "input_len": n_prompt,
        "tokens_per_second": summary([n_prompt / timeline.first for timeline in timelines]),
        "seconds_to_first_token": summary([timeline.first for timeline in timelines], 5),
        "foreign": foreign,
    }
