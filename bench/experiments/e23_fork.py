"""E23: three branches of one prompt, and the request that joins them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive, equal_tokens
from bench.experiments.engines import Made, Models, greedy, tokens

N_BRANCHES = 3
ROOT = 50
"""Request id of what the branches fork from."""
HOLD_SECONDS = 60.0


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    sizes = settings.pick((768, 16, 24), (64, 8, 4))
    points: list[Json] = []
    runs: list[Sequence[Run]] = []
    arms = {"alone": (False, False), "prefix cache": (True, False), "forked": (False, True)}
    for name, (is_cached, forks) in arms.items():
        with models.engine(enable_prefix_caching=is_cached, max_num_seqs=5) as made:
            warm = greedy(99, tokens(made.sizes.vocab_size, sizes[0], 9), 2)
            drive(made.engine, at_once([warm]), made.clock)
            n_steps = made.engine.stats().step
            found = _fork_and_join(made, sizes, forks)
            steps = made.engine.timeline.recent(4096)
            described = made.described
        runs.append(found)
        points.append(
            {
                "branches": name,
                "seconds": round(sum(one.seconds for one in found), 4),
                "fork_seconds": round(sum(one.seconds for one in found[:-1]), 4),
                "join_seconds": round(found[-1].seconds, 4),
                "prefilled": sum(n for step in steps[n_steps:] for _, _, n in step.chunks),
            }
        )
    ratios = [points[0]["seconds"] / point["seconds"] for point in points]
    n_computed = [point["prefilled"] for point in points]
    return Outcome(
        measured=(
            f"forked {ratios[2]:.1f}x faster than alone with {n_computed[0] / n_computed[2]:.1f}x "
            f"fewer prompt tokens computed ({n_computed[0]} to {n_computed[2]}); three requests "
            f"that find each other in the prefix cache {ratios[1]:.1f}x"
        ),
        conditions=(
            f"{sizes[0]} shared tokens, {N_BRANCHES} branches of {sizes[1]} more and {sizes[2]} "
            "outputs together, then one request over the prompt and all three answers; forked: "
            "the root is computed first and held, no prefix cache; alone: neither"
        ),
        summary={
            "fork_ratio": round(ratios[2], 2),
            "cache_ratio": round(ratios[1], 2),
            "tokens_ratio": round(n_computed[0] / n_computed[2], 2),
        },
        points=points,
        met=n_computed[2] <= sizes[0] + N_BRANCHES * sum(sizes[1:]) + N_BRANCHES + 1,
        identical=all(equal_tokens(*arm) for arm in zip(*(x[-2:] for x in runs), strict=True)),
        engine=described,
    )


def _fork_and_join(made: Made, sizes: tuple[int, int, int], forks: bool) -> list[Run]:
    """The root where there is one, the branches, the join."""
    n_shared, n_own, n_out = sizes
    shared = tokens(made.sizes.vocab_size, n_shared, 1)
    branches = [tokens(made.sizes.vocab_size, n_own, 2, i) for i in range(N_BRANCHES)]
    runs: list[Run] = []
    more: list[Json] = [{}] * (N_BRANCHES + 1)
    if forks:
        root = greedy(ROOT, shared, 1, hold_seconds=HOLD_SECONDS)
        runs.append(drive(made.engine, at_once([root]), made.clock))
        more = [{"parent": ROOT, "hold_seconds": HOLD_SECONDS}] * N_BRANCHES + [{"parent": 0}]
    requests = [greedy(i, (*shared, *own), n_out, **more[i]) for i, own in enumerate(branches)]
    fork = drive(made.engine, at_once(requests), made.clock)
    answers = [token for i in range(N_BRANCHES) for token in fork.traces[i].tokens]
    join = greedy(N_BRANCHES, (*shared, *branches[0], *answers), n_out, **more[N_BRANCHES])
    return [*runs, fork, drive(made.engine, at_once([join]), made.clock)]


EXPERIMENT = Experiment(
    name="e23-fork",
    title="A three-way fork and its join",
    claim="branches of a program share the prefix of their fork (Zheng et al., SGLang, 2024)",
    target="the shared prompt is computed once",
    uses_model=True,
    seconds=5,
    chart=Chart(
        x="branches",
        x_label="branches",
        y_label="seconds",
        lines={"fork_seconds": "fork", "join_seconds": "join"},
        kind="bar",
    ),
    run=run,
)
