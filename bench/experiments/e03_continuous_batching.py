"""E3: continuous against static batching, as a function of how much output lengths vary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive, equal_tokens
from bench.experiments.engines import (
    FAKE_VOCAB,
    Models,
    fake_engine,
    greedy,
    tokens,
)
from bench.experiments.lengths import variation_of, with_variation
from kvasir.config.resolved import SchedulerConfig, SchedulingPolicy, SharingConfig
from kvasir.core.plan import StepPlan
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes

PROMPT = 16
MEAN = 24
VARIATIONS = (0.0, 0.5, 1.0, 2.0, 4.0)
HEAVY = 4.0
"""Variation of the run on the model."""

POLICIES: tuple[SchedulingPolicy, ...] = ("fcfs", "static")
Requests = list[EngineRequest]


def run(settings: Settings) -> Outcome:
    batch, n, limit = settings.pick((64, 448, 1024), (4, 16, 64))
    points: list[Json] = []
    same: list[bool] = []
    for variation in settings.pick(VARIATIONS, (0.0, 2.0)):
        lengths = with_variation(n, MEAN, variation, limit)
        point: Json = {"variation": round(variation_of(lengths), 2)}
        for name, seconds in (("flat", _flat), ("per_row", _per_row)):
            ratio, equal = _virtual(lengths, batch, limit, seconds)
            point[name] = round(ratio, 2)
            same.append(equal)
        points.append(point)
    models = Models(settings)
    real_batch, real_n = settings.pick((64, 192), (4, 12))
    lengths = with_variation(real_n, MEAN, HEAVY, limit // 2)
    runs: list[Run] = []
    described: Json = {}
    for policy in POLICIES:
        with models.engine(
            enable_prefix_caching=False,
            max_num_seqs=real_batch,
            max_model_len=PROMPT + limit // 2,
            scheduling_policy=policy,
        ) as made:
            drive(made.engine, at_once(_requests(made.sizes.vocab_size, [4] * 4)), made.clock)
            requests = _requests(made.sizes.vocab_size, lengths)
            runs.append(drive(made.engine, at_once(requests), made.clock))
            described = made.described
    continuous, static = runs
    same.append(equal_tokens(continuous, static))
    real = _rate(continuous) / _rate(static)
    points[-1]["model"] = round(real, 2)
    return Outcome(
        measured=(
            f"{points[-1]['flat']:.1f}x where a step costs the same whatever its rows (variation "
            f"{points[-1]['variation']}), {points[0]['flat']:.1f}x with equal lengths; on the "
            f"model {real:.1f}x (variation {variation_of(lengths):.1f})"
        ),
        conditions=(
            f"{batch} at a time, {PROMPT} tokens in, log-normal outputs of mean {MEAN} cut at "
            f"{limit} (model: {limit // 2}); output rate until the queue is empty; static: the "
            "next batch starts when the last request of a batch is done, finished rows cost "
            "nothing; flat and 1 + rows/16 are virtual costs of a step; a CPU's step grows with "
            "its rows, so that stragglers of a static batch cost less there"
        ),
        summary={"flat": points[-1]["flat"], "model": round(real, 2)},
        points=points,
        met=points[-1]["flat"] >= 8,
        identical=all(same),
        engine=described,
    )


def _flat(plan: StepPlan) -> float:
    return 1.0


def _per_row(plan: StepPlan) -> float:
    return 1.0 + len(plan.rows) / 16


def _virtual(
    lengths: Sequence[int], batch: int, limit: int, seconds: Callable[[StepPlan], float]
) -> tuple[float, bool]:
    """How much more continuous batching gives, and whether the answers are the same."""
    runs: list[Run] = []
    for policy in POLICIES:
        config = SchedulerConfig(
            EngineSizes(
                vocab_size=FAKE_VOCAB,
                max_model_len=PROMPT + limit,
                max_num_seqs=batch,
                max_num_batched_tokens=batch * PROMPT,
                n_blocks=batch * (PROMPT + limit) // 16 + batch,
                block_size=16,
            ),
            sharing=SharingConfig(policy=policy),
        )
        made = fake_engine(config, seconds)
        runs.append(drive(made.engine, at_once(_requests(FAKE_VOCAB, lengths)), made.clock))
    continuous, static = runs
    return _rate(continuous) / _rate(static), equal_tokens(continuous, static)


def _requests(vocab_size: int, lengths: Sequence[int]) -> Requests:
    return [greedy(i, tokens(vocab_size, PROMPT, 1, i), n) for i, n in enumerate(lengths)]


def _rate(run: Run) -> float:
    """Tokens per second until the last request has its first token: the rest is the end of the
    workload, which a service does not have."""
    until = max(trace.times[0] for trace in run.traces.values())
    times = [time for trace in run.traces.values() for time in trace.times]
    return sum(time <= until for time in times) / until


EXPERIMENT = Experiment(
    name="e3-continuous-batching",
    title="Throughput of continuous over static batching",
    claim="10-20x the throughput of static batching (Yu et al., Orca, 2022; Anyscale 2023: 23x)",
    target="at least 8x with a heavy tail, where a step costs the same whatever its rows",
    uses_model=True,
    seconds=20,
    chart=Chart(
        x="variation",
        x_label="standard deviation of output lengths / mean",
        y_label="continuous / static",
        lines={
            "flat": "constant step",
            "per_row": "step of 1 + rows/16",
            "model": "model",
        },
    ),
    run=run,
)
