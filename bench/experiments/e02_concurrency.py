"""E2: how many sequences run at a time in the same bytes."""

from __future__ import annotations

from bench.experiments.base import Chart, Experiment, Outcome, Settings
from bench.experiments.drive import equal_tokens
from bench.experiments.engines import FAKE
from bench.experiments.kv_policies import BLOCK, LENGTHS, requests_of, run_policy


def run(settings: Settings) -> Outcome:
    lengths = requests_of(settings)
    contiguous, reserved = run_policy(settings, lengths, None)
    paged, usage = run_policy(settings, lengths, BLOCK)
    ratio = usage.mean_sequences / reserved.mean_sequences
    points = [
        {"policy": name, "mean": round(found.mean_sequences, 1), "peak": found.peak}
        for name, found in (("contiguous", reserved), ("paged", usage))
    ]
    preemptions = paged.engine.stats().n_preemptions
    return Outcome(
        measured=(
            f"{ratio:.1f}x: {usage.mean_sequences:.1f} sequences on average (peak {usage.peak}), "
            f"contiguous {reserved.mean_sequences:.1f}; {preemptions} preemptions"
        ),
        conditions=f"memory of {settings.pick(16, 4)} whole contexts; {LENGTHS}",
        summary={
            "ratio": round(ratio, 2),
            "steps_ratio": round(contiguous.seconds / paged.seconds, 2),
            "preemptions": preemptions,
        },
        points=points,
        met=ratio >= 3,
        identical=equal_tokens(contiguous, paged),
        engine=FAKE,
    )


EXPERIMENT = Experiment(
    name="e2-concurrency",
    title="Sequences at a time in the same KV memory",
    claim="2-4x more concurrent requests with paging (Kwon et al. 2023)",
    target="at least 3x",
    uses_model=False,
    seconds=10,
    chart=Chart(
        x="policy",
        x_label="allocation",
        y_label="sequences",
        lines={"mean": "mean", "peak": "peak"},
        kind="bar",
    ),
    run=run,
)
