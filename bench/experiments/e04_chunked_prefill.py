"""E4: what running streams notice while a long prompt arrives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive, equal_tokens
from bench.experiments.engines import Made, Models, greedy, tokens
from kvasir.core.request import EngineRequest

N_STREAMS = 16
TARGET = 1.8
"""Of the last arm: the time of a step, as a multiple of the quiet gap between two tokens."""
NEAR = 20
"""A gap is compared with the median quiet one of the tokens at most so far from its own."""
LONG = 10_000
"""Request id of the long prompt."""


N_ALONE = 1400
"""Tokens of each stream without the long prompt: gaps grow with the context, so that each beside it
is compared with those at its place."""


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
    size = {"max_model_len": room, "max_num_seqs": 32}
    with models.engine(**size) as made:
        streams = _streams(made, settings.pick(N_ALONE, 200))
        alone = drive(made.engine, at_once(streams), made.clock)
    target = max(1, round(TARGET * _gaps(alone, 0, settings.pick(100, 8))["p50"] * 1000))
    arms[f"gap target of {target} ms"] = {"itl_target_ms": target}
    for name, options in arms.items():
        with models.engine(**size, **options) as made:
            script = _Script(tokens(made.sizes.vocab_size, n_long, 1), settings.pick(40, 8))
            streams = _streams(made, room - 33)
            found = drive(made.engine, at_once(streams), made.clock, script.watch)
            described = made.described
        runs.append(found)
        points.append({"arm": name, **_compare(found, script.sent, alone)})
    return _outcome(points, runs, described, n_long)


def _streams(made: Made, n_outputs: int) -> list[EngineRequest]:
    return [greedy(i, tokens(made.sizes.vocab_size, 32, 2, i), n_outputs) for i in range(N_STREAMS)]


def _compare(found: Run, sent: float, alone: Run) -> Json:
    """Gaps from the long prompt's arrival until one that holds its first token, and those of the
    same tokens without it, as far as they go."""
    first = found.traces[LONG].times[0]
    stream = found.traces[0].times
    begin = sum(time <= sent for time in stream)
    end = sum(time < first for time in stream) + 1
    loaded, quiet = _gaps(found, begin, end), _gaps(alone, begin, end)
    ratios, noise = _ratios(found, alone, begin, end), _ratios(alone, alone, begin, end)
    return {
        "ratio_p50": round(float(np.median(ratios)), 3),
        "ratio_p99": round(float(np.percentile(ratios, 99)), 3),
        "quiet_ratio_p99": round(float(np.percentile(noise, 99)), 3),
        **{f"quiet_{name}": value for name, value in quiet.items()},
        **{f"loaded_{name}": value for name, value in loaded.items()},
        "ttft": round(found.traces[LONG].ttft, 3),
        "tokens": end - begin,
    }


def _ratios(found: Run, alone: Run, begin: int, end: int) -> list[float]:
    """Each gap before tokens [begin, end) over the median quiet one near the same token."""
    last = min(len(trace.gaps) for trace in alone.traces.values())
    quiet = {
        at: np.median(_before(alone, max(1, min(at, last) - NEAR), min(at, last) + NEAR + 1))
        for at in range(max(begin, 1), end)
    }
    return [
        float(gap / quiet[at])
        for i, trace in found.traces.items()
        if i != LONG
        for at, gap in enumerate(trace.gaps, 1)
        if at in quiet
    ]


def _before(run: Run, begin: int, end: int) -> list[float]:
    """Seconds before tokens [begin, end) of every stream."""
    return [
        gap
        for i, trace in run.traces.items()
        if i != LONG
        for gap in trace.gaps[max(begin, 1) - 1 : end - 1]
    ]


def _gaps(run: Run, begin: int, end: int) -> Json:
    gaps = _before(run, begin, end)
    return {
        "p50": round(float(np.median(gaps)), 5),
        "p99": round(float(np.percentile(gaps, 99)), 5),
        "max": round(max(gaps), 5),
    }


def _outcome(points: list[Json], runs: list[Run], described: Json, n_long: int) -> Outcome:
    words = [
        f"{point['arm']}: {point['ratio_p50']:.1f}x the quiet median at the same token, p99 "
        f"{point['ratio_p99']:.1f}x ({point['loaded_p99'] * 1e3:.0f} ms; quiet streams themselves "
        f"{point['quiet_ratio_p99']:.1f}x), TTFT {point['ttft']:.1f} s"
        for point in points
    ]
    return Outcome(
        measured="; ".join(words),
        conditions=(
            f"{N_STREAMS} streams decode, then a prompt of {n_long} tokens arrives; gaps between "
            "tokens of the streams until its first token, each over the median one of the tokens "
            f"at most {NEAR} away in streams without it, as far as token {N_ALONE}"
        ),
        summary={point["arm"]: point["ratio_p99"] for point in points},
        points=points,
        met=min(point["ratio_p99"] for point in points) <= 2,
        identical=equal_tokens(*runs),
        engine=described,
    )


EXPERIMENT = Experiment(
    name="e4-chunked-prefill",
    title="Gaps between tokens of 16 streams while an 8k prompt arrives",
    claim="chunked prefill keeps the latency of others low for a slightly later first token "
    "(Agrawal et al., Sarathi-Serve, 2024)",
    target="p99 at most 2x the median gap of quiet streams at the same token, with a gap target",
    uses_model=True,
    seconds=120,
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
