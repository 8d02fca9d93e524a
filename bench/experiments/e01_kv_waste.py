"""E1: how much of the allocated KV memory holds nothing."""

from __future__ import annotations

from bench.experiments.base import Chart, Experiment, Outcome, Settings
from bench.experiments.drive import equal_tokens
from bench.experiments.engines import FAKE
from bench.experiments.kv_policies import LENGTHS, requests_of, run_policy


def run(settings: Settings) -> Outcome:
    lengths = requests_of(settings)
    contiguous, reserved = run_policy(settings, lengths, None)
    runs, points = [contiguous], []
    for block in settings.pick((16, 32, 64, 128), (16, 32)):
        paged, usage = run_policy(settings, lengths, block)
        runs.append(paged)
        points.append(
            {
                "block_size": block,
                "paged": round(usage.waste, 4),
                "contiguous": round(reserved.waste, 4),
                "paged_sequences": round(usage.mean_sequences, 1),
            }
        )
    first = points[0]
    return Outcome(
        measured=f"paged {first['paged']:.1%} (blocks of 16), contiguous {reserved.waste:.1%}",
        conditions=f"1 - used / allocated entries over {len(lengths)} requests; {LENGTHS}",
        summary={"paged_waste": first["paged"], "contiguous_waste": round(reserved.waste, 4)},
        points=points,
        met=first["paged"] <= 0.04,
        identical=equal_tokens(*runs),
        engine=FAKE,
    )


EXPERIMENT = Experiment(
    name="e1-kv-waste",
    title="Unused share of the allocated KV memory",
    claim="contiguous allocation wastes 60-80 %, PagedAttention below 4 % (Kwon et al. 2023)",
    target="paged at most 4 %",
    uses_model=False,
    seconds=20,
    chart=Chart(
        x="block_size",
        x_label="tokens of a block",
        y_label="waste",
        lines={"paged": "paged", "contiguous": "contiguous"},
        log_x=True,
    ),
    run=run,
)
