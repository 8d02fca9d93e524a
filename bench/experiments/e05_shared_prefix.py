"""E5: time to the first token of 500 shared and 50 new tokens, cache on and off."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive, equal_tokens
from bench.experiments.engines import Models, greedy, tokens

N_OUTPUTS = 4
TARGET_SMALL, TARGET_LARGE = 8, 10
SMALL = 500 * 10**6
"""Bytes of weights below which a step of 50 tokens is bound by reading them."""


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    n_shared, n_own = settings.pick((500, 50), (64, 8))
    n_requests = settings.pick(16, 3)
    arms = (False, True)
    runs: dict[bool, list[Run]] = {cached: [] for cached in arms}
    size = {"max_num_seqs": 4}
    with ExitStack() as stack:
        made = {
            cached: stack.enter_context(models.engine(enable_prefix_caching=cached, **size))
            for cached in arms
        }
        shared = tokens(made[True].sizes.vocab_size, n_shared, 1)
        for i in range(n_requests + 1):
            prompt = (*shared, *tokens(made[True].sizes.vocab_size, n_own, 2, i))
            for cached in arms:  # in turns: a machine that is slow for a while is slow for both
                one = made[cached]
                run = drive(one.engine, at_once([greedy(i, prompt, N_OUTPUTS)]), one.clock)
                runs[cached].append(run)
        described = made[True].described
    points = [_point(cached, runs[cached]) for cached in arms]
    ratio = float(points[0]["ttft"] / points[1]["ttft"])
    return Outcome(
        measured=(
            f"{ratio:.1f}x: {points[0]['ttft'] * 1e3:.1f} ms without, "
            f"{points[1]['ttft'] * 1e3:.1f} ms with the cache"
        ),
        conditions=(
            f"{n_shared} shared + {n_own} new tokens, medians of {n_requests}, "
            "one at a time, both arms in turns"
        ),
        summary={"ratio": round(ratio, 2)},
        points=points,
        met=ratio >= (TARGET_SMALL if described["weight_bytes"] < SMALL else TARGET_LARGE),
        identical=all(equal_tokens(*pair) for pair in zip(*runs.values(), strict=True)),
        engine=described,
    )


def _point(cached: bool, runs: list[Run]) -> Json:
    """Of an arm, without its first request: that warms up, and with the cache it fills it."""
    traces = [run.traces[i] for i, run in enumerate(runs)][1:]
    return {
        "cache": "on" if cached else "off",
        "ttft": round(statistics.median(trace.ttft for trace in traces), 6),
        "runs": [round(trace.ttft, 6) for trace in traces],
        "cached_tokens": [trace.n_cached for trace in traces],
    }


EXPERIMENT = Experiment(
    name="e5-shared-prefix",
    title="Time to the first token, 500 shared + 50 new tokens",
    claim="550 tokens become 50: 11x faster first token (Zheng et al., SGLang, 2024)",
    target="at least 8x on SmolLM2-135M, 10x on Qwen2.5-Coder-1.5B",
    uses_model=True,
    seconds=5,
    chart=Chart(
        x="cache", x_label="prefix cache", y_label="seconds", lines={"ttft": "TTFT"}, kind="bar"
    ),
    run=run,
)
