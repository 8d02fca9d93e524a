"""E4: what running streams notice while a long prompt arrives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvasir.bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from kvasir.bench.experiments.drive import Run, at_once, drive, equal_tokens
from kvasir.bench.experiments.engines import Models, greedy, tokens

N_STREAMS = 16
TARGET = 1.8
"""Of the last arm: the time of a step, as a multiple of the quiet gap between two tokens."""
LONG = 10_000
"""Request id of the long prompt."""


@dataclass(slots=True)
class _Script:
    """Submits the long prompt after ``quiet`` tokens of each stream; ends all when it answered."""

    prompt: tuple[int, ...]
    quiet: int
    sent: float = 0.0

    def watch(self, run: Run) -> None:
        long = run.traces.get(LONG)
        streams = [trace for i, trace in run.traces.items() if i != LONG]
        if long is None and min(len(trace.tokens) for trace in streams) >= self.quiet:
            self.sent = run.clock.now() - run.start
            request = greedy(LONG, self.prompt, 4)
            run.engine.add(request)
            run.traces[LONG] = type(streams[0])(self.sent)
        if long is not None and long.finish is not None:
            for i, trace in run.traces.items():
                if trace.finish is None:
                    run.engine.cancel(i)


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    n_long = settings.pick(8000, 200)
    room = n_long + settings.pick(64, 40)
    arms: dict[str, Json] = {"whole prompt in one step": {"max_num_batched_tokens": room}}
    for n in settings.pick((512, 128), (64, 32)):
        arms[f"chunks of {n}"] = {"max_num_batched_tokens": n}
    arms["--itl-target-ms 0"] = {"itl_target_ms": 0}
    points: list[Json] = []
    runs: list[Run] = []
    described: Json = {}
    while arms:
        name = next(iter(arms))
        with models.engine(max_model_len=room, max_num_seqs=32, **arms.pop(name)) as made:
            script = _Script(tokens(made.vocab_size, n_long, 1), settings.pick(40, 8))
            streams = [
                greedy(i, tokens(made.vocab_size, 32, 2, i), room - 33) for i in range(N_STREAMS)
            ]
            found = drive(made.engine, at_once(streams), made.clock, script.watch)
            described = made.described
        runs.append(found)
        points.append({"arm": name, **_times(found, script.sent)})
        if len(points) == 1:
            target = max(1, round(TARGET * points[0]["quiet_p50"] * 1000))
            arms[f"gap target of {target} ms"] = {"itl_target_ms": target}
    return _outcome(points, runs, described, n_long)


def _times(found: Run, sent: float) -> Json:
    """Gaps before the long prompt arrived, and until it had its first token."""
    first = found.traces[LONG].times[0]
    quiet: list[float] = []
    loaded: list[float] = []
    for i, trace in found.traces.items():
        for end, gap in zip(trace.times[1:], trace.gaps, strict=True):
            if i != LONG and end <= first:
                (loaded if end > sent else quiet).append(gap)
    return {
        "quiet_p50": round(float(np.median(quiet)), 5),
        "quiet_p99": round(float(np.percentile(quiet, 99)), 5),
        "loaded_p50": round(float(np.median(loaded)), 5),
        "loaded_p99": round(float(np.percentile(loaded, 99)), 5),
        "loaded_max": round(max(loaded), 5),
        "ttft": round(found.traces[LONG].ttft, 3),
    }


def _outcome(points: list[Json], runs: list[Run], described: Json, n_long: int) -> Outcome:
    def ratio(point: Json) -> float:
        return float(point["loaded_p99"] / point["quiet_p50"])

    words = [
        f"{point['arm']}: p99 {point['loaded_p99'] * 1e3:.0f} ms = {ratio(point):.1f}x quiet, "
        f"TTFT {point['ttft']:.1f} s"
        for point in points
    ]
    return Outcome(
        measured="; ".join(words),
        conditions=(
            f"{N_STREAMS} streams decode, then a prompt of {n_long} tokens arrives; gaps between "
            "tokens of the streams until its first token; quiet: their median before"
        ),
        summary={point["arm"]: round(ratio(point), 2) for point in points},
        points=points,
        identical=equal_tokens(*runs),
        engine=described,
    )


EXPERIMENT = Experiment(
    name="e4-chunked-prefill",
    title="Gaps between tokens of 16 streams while an 8k prompt arrives",
    claim="chunked prefill keeps the latency of others low for a slightly later first token "
    "(Agrawal et al., Sarathi-Serve, 2024)",
    target="p99 at most 2x the quiet gap",
    uses_model=True,
    seconds=60,
    chart=Chart(
        x="arm",
        x_label="prefill",
        y_label="seconds",
        lines={"quiet_p99": "quiet p99", "loaded_p99": "p99 while the prompt is computed"},
        kind="bar",
        log_y=True,
    ),
    run=run,
)
