"""What the prefix cache costs when no two prompts have anything in common.

Without the cache the same few blocks are written again and again, with it new ones until memory is
full: the first write to a page of memory is slow, so both arms begin when all pages are there, as
they are some seconds after a start. Runs are short and come in pairs: the speed of a shared machine
drifts by more than what is measured, and less from one run to the next.
"""

from __future__ import annotations

import statistics
import time

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive, equal_tokens
from bench.experiments.engines import FAKE_VOCAB, Made, Models, greedy, tokens
from kvasir.config.resolved import SchedulerConfig
from kvasir.core.plan import RowOutput, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.sched.scheduler import Scheduler

Sizes = tuple[int, int, int]
"""Requests, prompt tokens, output tokens."""


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    sizes = settings.pick((8, 200, 16), (4, 32, 4))
    repeats = settings.pick(45, 2)
    walls: dict[bool, list[float]] = {False: [], True: []}
    runs: dict[bool, list[Run]] = {False: [], True: []}
    with (
        models.engine(enable_prefix_caching=False, max_num_seqs=32) as plain,
        models.engine(enable_prefix_caching=True, max_num_seqs=32) as cached,
    ):
        for made in (plain, cached):
            made.warm()
        for key in range(repeats + 1):
            # The order changes, so that neither arm is always the one that comes second.
            arms = ((False, plain), (True, cached)) if key % 2 else ((True, cached), (False, plain))
            for is_cached, made in arms:
                found = _serve(made, sizes, key)
                runs[is_cached].append(found)
                if key:
                    walls[is_cached].append(found.seconds)
        described = cached.described
    off, on = statistics.median(walls[False]), statistics.median(walls[True])
    ratios = sorted(b / a for a, b in zip(walls[False], walls[True], strict=True))
    ratio = statistics.median(ratios)
    quartiles = [round(ratios[len(ratios) * i // 4], 4) for i in (1, 3)]
    planning = [min(_planning(sizes, enabled) for _ in range(3)) for enabled in (False, True)]
    share = (planning[1] - planning[0]) / off
    points: list[Json] = [
        {"cache": "off", "seconds": round(off, 4), "runs": walls[False], "planning": planning[0]},
        {"cache": "on", "seconds": round(on, 4), "runs": walls[True], "planning": planning[1]},
    ]
    return Outcome(
        measured=(
            f"wall clock on/off {ratio:.4f} (quartiles {quartiles[0]:.3f} and {quartiles[1]:.3f}); "
            f"of it keys and index {share:.2%} "
            f"({planning[1] - planning[0]:.4f} of {off:.2f} s)"
        ),
        conditions=(
            f"{sizes[0]} prompts of {sizes[1]} random tokens, {sizes[2]} outputs each, all at "
            f"once; median ratio of {repeats} pairs in turns, KV memory prepared; the share is the "
            "scheduler's time with the cache minus without, measured alone (best of 3)"
        ),
        summary={"share": round(share, 5), "wall_ratio": round(ratio, 4), "quartiles": quartiles},
        points=points,
        met=ratio <= 1.01,
        identical=all(equal_tokens(*pair) for pair in zip(*runs.values(), strict=True)),
        engine=described,
    )


def _serve(made: Made, sizes: Sizes, key: int) -> Run:
    n, n_in, n_out = sizes
    requests = [greedy(i, tokens(made.sizes.vocab_size, n_in, key, i), n_out) for i in range(n)]
    return drive(made.engine, at_once(requests), made.clock)


def _planning(sizes: Sizes, enabled: bool) -> float:
    """Seconds that the scheduler takes for the same requests."""
    n, n_in, n_out = sizes
    config = SchedulerConfig(
        EngineSizes(
            vocab_size=FAKE_VOCAB,
            max_model_len=n_in + n_out,
            max_num_seqs=32,
            max_num_batched_tokens=512,
            n_blocks=8192,
            block_size=16,
        ),
        enable_prefix_caching=enabled,
    )
    scheduler = Scheduler(config)
    requests = [greedy(i, tokens(FAKE_VOCAB, n_in, 9, i), n_out) for i in range(n)]
    began = time.perf_counter()
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work:
        plan = scheduler.plan()
        if plan is not None:
            scheduler.commit(plan, StepResult((RowOutput(7),) * plan.n_logits, 0.001))
    return time.perf_counter() - began


EXPERIMENT = Experiment(
    name="unique-prompts",
    title="Cost of the prefix cache on prompts that share nothing",
    claim="prefix caching has no effect on unique prompts",
    target="at most 1 % more wall clock",
    uses_model=True,
    seconds=280,
    chart=Chart(
        x="cache", x_label="prefix cache", y_label="seconds", lines={"seconds": "wall clock"},
        kind="bar",
    ),
    run=run,
)  # fmt: skip
