"""E18: a preempted request comes back from disk, or is computed again.

Sixteen older requests grow until the youngest, of a long prompt, has lost all its blocks. When they
are done it comes back: the time from then to its next token is what swapping or computing costs.
"""

from __future__ import annotations

from statistics import median
from tempfile import TemporaryDirectory

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive, equal_tokens
from bench.experiments.engines import Made, Models, greedy, tokens
from kvasir.core.errors import KvasirError
from kvasir.timing.records import Story

MODES = ("recompute", "swap", "auto")
N_OLDER = 16
N_TURNS = 5
"""Of the three modes; their medians count."""
VICTIM = N_OLDER
SHORT = 16
"""Prompt tokens of the older requests."""


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    with models.engine(max_num_seqs=2, kv_memory="64MiB") as made:
        block, block_bytes = made.sizes.block_size, made.block_bytes
    points: list[Json] = []
    same: list[bool] = []
    described: Json = {}
    for length in settings.pick((128, 512, 1024, 2048), (64, 128)):
        # Admission leaves a block free for every running request; at their end the older ones have
        # them all.
        n_grown = -(-(2 * N_OLDER + length // block + 1) // N_OLDER) - 1
        n_blocks = N_OLDER * (1 + n_grown)
        n_outputs = n_grown * block
        point: Json = {"tokens": length}
        runs: list[Run] = []
        seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
        chosen: list[str] = []
        for mode in MODES * settings.pick(N_TURNS, 1):
            with TemporaryDirectory(prefix="kvasir-kv-") as folder:
                changes = {"kv_disk": folder, "preemption_mode": mode}
                with models.engine(
                    kv_memory=n_blocks * block_bytes, max_num_seqs=N_OLDER + 1, **changes
                ) as made:
                    runs.append(_preempted(made, length, n_outputs))
                    described = made.described
                    story = _story(made)
                    seconds[mode].append(_comeback(story, runs[-1]))
                    if mode == "auto":
                        chosen.append(_choice(story))
        point |= {mode: round(median(found), 5) for mode, found in seconds.items()}
        same.append(equal_tokens(*runs))
        best = min(point["swap"], point["recompute"])
        point["auto_over_best"] = round(point["auto"] / best, 3)
        point["chosen"] = sorted(chosen)
        point["choice_over_best"] = round(max(point[mode] for mode in chosen) / best, 3)
        points.append(point)
    return _outcome(points, all(same), described)


def _preempted(made: Made, length: int, n_outputs: int) -> Run:
    older = [
        greedy(i, tokens(made.sizes.vocab_size, SHORT, 1, i), n_outputs) for i in range(N_OLDER)
    ]
    victim = greedy(VICTIM, tokens(made.sizes.vocab_size, length, 2), n_outputs + 4)
    return drive(made.engine, at_once([*older, victim]), made.clock)


def _story(made: Made) -> Story:
    """Of the victim."""
    story = made.engine.timeline.story(VICTIM)
    if story is None or not any(span.kind == "preempted" for span in story.spans):
        raise KvasirError("the long request was not preempted: the memory has room for all")
    return story


def _comeback(story: Story, run: Run) -> float:
    """Seconds from the end of the older requests to the victim's next token."""
    free = max(run.traces[i].times[-1] for i in range(N_OLDER))
    return min(time for time in run.traces[story.id].times if time > free) - free


def _choice(story: Story) -> str:
    return "swap" if any(span.kind == "swapped_in" for span in story.spans) else "recompute"


def _outcome(points: list[Json], is_same: bool, described: Json) -> Outcome:
    words = [
        f"{p['tokens']} tokens: recompute {p['recompute'] * 1e3:.0f} ms, swap "
        f"{p['swap'] * 1e3:.0f} ms, auto {p['auto'] * 1e3:.0f} ms "
        f"(chose {' and '.join(sorted(set(p['chosen'])))})"
        for p in points
    ]
    cheaper = [p["tokens"] for p in points if p["swap"] < p["recompute"]]
    crossover = f"swap is faster from {cheaper[0]} tokens on" if cheaper else "swap never is faster"
    worst = max(p["auto_over_best"] for p in points)
    choice = max(p["choice_over_best"] for p in points)
    return Outcome(
        measured=(
            f"{'; '.join(words)}; {crossover}; "
            f"auto takes at most {worst:.2f}x the better, what it chose {choice:.2f}x"
        ),
        conditions=(
            f"{N_OLDER} older requests grow until the long one has no block left; time from their "
            f"end to its next token, medians of {N_TURNS}; files may be in the page cache"
        ),
        summary={"crossover": cheaper[0] if cheaper else None, "auto_over_best": worst},
        points=points,
        met=worst <= 1.1,
        identical=is_same,
        engine=described,
    )


EXPERIMENT = Experiment(
    name="e18-swap-or-recompute",
    title="Time until a preempted request goes on",
    claim="whether swapping or recomputing is cheaper depends on the length (Kwon et al. 2023)",
    target="the automatic choice within 10 % of the better one",
    uses_model=True,
    seconds=100,
    chart=Chart(
        x="tokens",
        x_label="tokens of the preempted request",
        y_label="seconds",
        lines={"recompute": "recompute", "swap": "swap", "auto": "auto"},
        log_x=True,
        log_y=True,
    ),
    run=run,
)
