"""E23: three branches of one prompt, and the request that joins them."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from kvasir.bench.experiments.drive import Run, at_once, drive, equal_tokens
from kvasir.bench.experiments.engines import Made, Models, greedy, tokens

N_BRANCHES = 3


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    sizes = settings.pick((768, 16, 24), (64, 8, 4))
    points: list[Json] = []
    runs: list[Sequence[Run]] = []
    for shares in (False, True):
        with models.engine(enable_prefix_caching=shares, max_num_seqs=4) as made:
            warm = greedy(99, tokens(made.vocab_size, sizes[0], 9), 2)
            drive(made.engine, at_once([warm]), made.clock)
            before = made.engine.stats()
            found = _fork_and_join(made, sizes)
            after = made.engine.stats()
            described = made.described
        n_computed = after.prompt_tokens - before.prompt_tokens
        n_computed -= after.prefix_hits - before.prefix_hits
        runs.append(found)
        points.append(
            {
                "branches": "share the prefix" if shares else "alone",
                "seconds": round(sum(one.seconds for one in found), 4),
                "fork_seconds": round(found[0].seconds, 4),
                "join_seconds": round(found[1].seconds, 4),
                "prefilled": n_computed,
            }
        )
    ratio = points[0]["seconds"] / points[1]["seconds"]
    n_plain, n_shared = points[0]["prefilled"], points[1]["prefilled"]
    return Outcome(
        measured=(
            f"{ratio:.1f}x faster, {n_plain / n_shared:.1f}x fewer prompt tokens computed "
            f"({n_plain} to {n_shared})"
        ),
        conditions=(
            f"{sizes[0]} shared tokens, {N_BRANCHES} branches of {sizes[1]} more and {sizes[2]} "
            "outputs submitted together, then one request over the prompt and all three answers; "
            "alone: the same requests without the prefix cache"
        ),
        summary={"ratio": round(ratio, 2), "tokens_ratio": round(n_plain / n_shared, 2)},
        points=points,
        identical=all(equal_tokens(*pair) for pair in zip(*runs, strict=True)),
        engine=described,
    )


def _fork_and_join(made: Made, sizes: tuple[int, int, int]) -> tuple[Run, Run]:
    n_shared, n_own, n_out = sizes
    shared = tokens(made.vocab_size, n_shared, 1)
    branches = [tokens(made.vocab_size, n_own, 2, i) for i in range(N_BRANCHES)]
    requests = [greedy(i, (*shared, *own), n_out) for i, own in enumerate(branches)]
    fork = drive(made.engine, at_once(requests), made.clock)
    answers = [token for i in range(N_BRANCHES) for token in fork.traces[i].tokens]
    join = greedy(N_BRANCHES, (*shared, *branches[0], *answers), n_out)
    return fork, drive(made.engine, at_once([join]), made.clock)


EXPERIMENT = Experiment(
    name="e23-fork",
    title="A three-way fork and its join",
    claim="branches of a program share the prefix of their fork (Zheng et al., SGLang, 2024)",
    target="the shared prompt is computed once",
    uses_model=True,
    seconds=10,
    chart=Chart(
        x="branches",
        x_label="branches",
        y_label="seconds",
        lines={"fork_seconds": "fork", "join_seconds": "join"},
        kind="bar",
    ),
    run=run,
)
