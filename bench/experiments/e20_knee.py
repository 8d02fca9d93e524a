"""E20: throughput and latency under rising concurrency, and where the curve bends."""

from __future__ import annotations

import numpy as np

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, Trace, at_once, drive, equal_tokens
from bench.experiments.engines import Made, Models, greedy, tokens
from bench.experiments.knee import knee, operating_point


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    levels = settings.pick((1, 2, 4, 8, 16, 32, 64), (1, 2, 4))
    sizes = settings.pick((64, 48), (8, 6))
    points: list[Json] = []
    runs: list[Run] = []
    with models.engine(max_num_seqs=max(levels), enable_prefix_caching=False) as made:
        drive(
            made.engine,
            at_once([greedy(10**6, tokens(made.sizes.vocab_size, 64, 9), 4)]),
            made.clock,
        )
        for level in levels:
            runs.append(_closed_loop(made, level, max(2 * level, 4), sizes))
            points.append(_point(level, runs[-1]))
    rates = [point["tokens_per_second"] for point in points]
    gaps = [point["gap_p50"] for point in points]
    bend, best = points[knee(gaps, rates)], points[operating_point(rates)]
    return Outcome(
        measured=(
            f"knee at {bend['concurrency']} requests: {bend['tokens_per_second']:.0f} tok/s, "
            f"{bend['gap_p50'] * 1e3:.1f} ms a token; 75 % of the best throughput "
            f"({max(rates):.0f} tok/s) from {best['concurrency']} on"
        ),
        conditions=(
            f"closed loop, {sizes[0]} tokens in, {sizes[1]} out, greedy, no prefix cache; knee by "
            "Kneedle over the median gap between tokens"
        ),
        summary={"knee": bend["concurrency"], "operating_point": best["concurrency"]},
        points=points,
        met=bend["concurrency"] < max(point["concurrency"] for point in points),
        identical=equal_tokens(*runs),
        engine=made.described,
    )


def _closed_loop(made: Made, level: int, n: int, sizes: tuple[int, int]) -> Run:
    """``n`` requests, ``level`` of them at a time."""
    n_in, n_out = sizes
    requests = [greedy(i, tokens(made.sizes.vocab_size, n_in, 1, i), n_out) for i in range(n)]
    rest = requests[level:][::-1]
    n_done = 0

    def refill(run: Run) -> None:
        nonlocal n_done
        done = sum(trace.finish is not None for trace in run.traces.values())
        for _ in range(done - n_done):
            if rest:
                request = rest.pop()
                run.traces[request.id] = Trace(run.clock.now() - run.start)
                run.engine.add(request)
        n_done = done

    return drive(made.engine, at_once(requests[:level]), made.clock, refill)


def _point(level: int, run: Run) -> Json:
    gaps = [gap for trace in run.traces.values() for gap in trace.gaps]
    ttfts = [trace.ttft for trace in run.traces.values()]
    return {
        "concurrency": level,
        "tokens_per_second": round(run.n_outputs / run.seconds, 1),
        "gap_p50": round(float(np.median(gaps)), 5),
        "gap_p99": round(float(np.percentile(gaps, 99)), 5),
        "ttft_p50": round(float(np.median(ttfts)), 5),
        "ttft_p99": round(float(np.percentile(ttfts, 99)), 5),
    }


EXPERIMENT = Experiment(
    name="e20-knee",
    title="Throughput against latency under rising concurrency",
    claim="throughput rises with concurrency until a knee, beyond which only latency does; "
    "operate at 70-80 % of the capacity",
    target="the knee is found",
    uses_model=True,
    seconds=10,
    chart=Chart(
        x="tokens_per_second",
        x_label="output tokens per second",
        y_label="seconds between tokens",
        lines={"gap_p50": "median", "gap_p99": "p99"},
    ),
    run=run,
)
