"""E24: the highest request rate at which the first token still comes in time, and what faults do.

At the rate found the same arrivals come once more, with faulty requests between them: cancelled
while they run, with a deadline that cannot be kept, and such that can never run. The others must
all be answered, with the same tokens.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Arrival, Run, at_once, drive, equal_tokens
from bench.experiments.engines import SEED, Made, Models, greedy, tokens
from kvasir.core.request import EngineRequest, Standing

SLO_SECONDS = 0.2
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Request rates, as shares of what a burst reaches."""
FAULTY = 1_000_000
"""First request id of the faulty ones."""


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    sizes = settings.pick((64, 32), (8, 4))
    shares, seconds = settings.pick((SHARES, 15.0), ((0.3, 0.6), 0.2))
    points: list[Json] = []
    runs: list[Run] = []
    with models.engine(max_num_seqs=64, enable_prefix_caching=False) as made:
        burst = drive(
            made.engine, at_once(_requests(made, settings.pick(64, 8), sizes)), made.clock
        )
        capacity = len(burst.traces) / burst.seconds
        for share in shares:
            rate = share * capacity
            n = max(2, round(rate * seconds))
            gaps = np.random.default_rng((SEED, n)).exponential(1 / rate, n)
            times = [float(when) for when in np.cumsum(gaps) - gaps[0]]
            arrivals = list(zip(times, _requests(made, n, sizes), strict=True))
            runs.append(drive(made.engine, arrivals, made.clock))
            points.append({**_point(share, rate, runs[-1]), "arrivals": arrivals})
        met = [point for point in points if point["ttft_p99"] < SLO_SECONDS]
        best = max(met, key=lambda point: float(point["goodput"]), default=points[0])
        faulty = _with_faults(made, best["arrivals"])
    answered = [t for i, t in faulty.traces.items() if i < FAULTY and t.finish == "length"]
    n_faulty = sum(i >= FAULTY for i in faulty.traces)
    availability = len(answered) / (len(faulty.traces) - n_faulty)
    for point in points:
        del point["arrivals"]
    said = f"no rate tested has p99 TTFT below {SLO_SECONDS * 1e3:.0f} ms"
    if met:
        said = (
            f"{best['goodput']:.1f} requests/s in time at {best['share']:.0%} of the burst rate "
            f"({capacity:.1f} requests/s): p99 TTFT {best['ttft_p99'] * 1e3:.0f} ms; beside "
            f"{n_faulty} faulty requests {availability:.1%} of the others are answered"
        )
    return Outcome(
        measured=said,
        conditions=(
            f"Poisson arrivals for {seconds:g} s at each rate, {sizes[0]} tokens in, {sizes[1]} "
            "out, no prefix cache, engine in process (no HTTP)"
        ),
        summary={
            "goodput": best["goodput"] if met else 0.0,
            "burst_rate": round(capacity, 2),
            "availability": round(availability, 4),
            "faulty": n_faulty,
        },
        points=points,
        met=bool(met) and availability >= 0.999,
        identical=equal_tokens(burst, *runs, faulty),
        engine=made.described,
    )


def _with_faults(made: Made, arrivals: list[Arrival]) -> Run:
    """One faulty request for every third other, at the same moment."""
    faults: list[Arrival] = []
    cancelled: set[int] = set()
    for i, (when, request) in enumerate(arrivals[::3]):
        faulty = replace(request, id=FAULTY + i)
        if i % 3 == 0:
            cancelled.add(faulty.id)
        elif i % 3 == 1:
            faulty = replace(faulty, standing=Standing(ttft_by=0.0))
        else:
            faulty = replace(faulty, prompt=request.prompt * made.sizes.max_model_len)
        faults.append((when, faulty))

    def watch(run: Run) -> None:
        begun = {i for i in cancelled if i in run.traces and len(run.traces[i].tokens) > 1}
        for i in begun:
            run.engine.cancel(i)
        cancelled.difference_update(begun)

    return drive(made.engine, [*arrivals, *faults], made.clock, watch, may_fail=FAULTY)


def _requests(made: Made, n: int, sizes: tuple[int, int]) -> list[EngineRequest]:
    return [greedy(i, tokens(made.sizes.vocab_size, sizes[0], 1, i), sizes[1]) for i in range(n)]


def _point(share: float, rate: float, run: Run) -> Json:
    ttfts = [trace.ttft for trace in run.traces.values()]
    in_time = sum(ttft < SLO_SECONDS for ttft in ttfts)
    return {
        "share": share,
        "rate": round(rate, 2),
        "requests": len(ttfts),
        "ttft_p50": round(float(np.median(ttfts)), 4),
        "ttft_p99": round(float(np.percentile(ttfts, 99)), 4),
        "goodput": round(in_time / run.seconds, 2),
    }


EXPERIMENT = Experiment(
    name="e24-slo",
    title="Time to the first token under rising request rate",
    claim="a service needs p99 TTFT below 200 ms at its load",
    target="the highest goodput with p99 TTFT below 200 ms is found, and 99.9 % are answered "
    "beside faulty requests",
    uses_model=True,
    seconds=130,
    chart=Chart(
        x="rate",
        x_label="requests per second",
        y_label="seconds to the first token",
        lines={"ttft_p50": "median", "ttft_p99": "p99"},
        log_y=True,
    ),
    run=run,
)
