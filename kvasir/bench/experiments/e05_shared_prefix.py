"""E5: time to the first token of 500 shared and 50 new tokens, cache on and off."""

from __future__ import annotations

import statistics

from kvasir.bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from kvasir.bench.experiments.drive import Run, at_once, drive, equal_tokens
from kvasir.bench.experiments.engines import Models, greedy, tokens

N_OUTPUTS = 4


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    n_shared, n_own = settings.pick((500, 50), (64, 8))
    n_requests = settings.pick(16, 3)
    points: list[Json] = []
    ttfts: dict[bool, list[float]] = {}
    runs: list[list[Run]] = []
    described: Json = {}
    for cached in (False, True):
        with models.engine(enable_prefix_caching=cached, max_num_seqs=4) as made:
            shared = tokens(made.vocab_size, n_shared, 1)
            prompts = [
                (*shared, *tokens(made.vocab_size, n_own, 2, i)) for i in range(n_requests + 1)
            ]
            found = [
                drive(made.engine, at_once([greedy(i, prompt, N_OUTPUTS)]), made.clock)
                for i, prompt in enumerate(prompts)
            ]
            described = made.described
        runs.append(found)
        # The first request of each arm warms up, and with the cache it fills it.
        ttfts[cached] = [one.traces[i].ttft for i, one in enumerate(found) if i]
        hits = [one.traces[i].n_cached for i, one in enumerate(found) if i]
        points.append(
            {
                "cache": "on" if cached else "off",
                "ttft": round(statistics.median(ttfts[cached]), 6),
                "runs": [round(x, 6) for x in ttfts[cached]],
                "cached_tokens": hits,
            }
        )
    ratio = statistics.median(ttfts[False]) / statistics.median(ttfts[True])
    return Outcome(
        measured=(
            f"{ratio:.1f}x: {points[0]['ttft'] * 1e3:.1f} ms without, "
            f"{points[1]['ttft'] * 1e3:.1f} ms with the cache"
        ),
        conditions=f"{n_shared} shared + {n_own} new tokens, median of {n_requests}, one at a time",
        summary={"ratio": round(ratio, 2)},
        points=points,
        identical=all(equal_tokens(*pair) for pair in zip(*runs, strict=True)),
        engine=described,
    )


EXPERIMENT = Experiment(
    name="e5-shared-prefix",
    title="Time to the first token, 500 shared + 50 new tokens",
    claim="550 tokens become 50: 11x faster first token (Zheng et al., SGLang, 2024)",
    target="at least 8x on SmolLM2-135M, 10x on Qwen2.5-Coder-1.5B",
    uses_model=True,
    seconds=15,
    chart=Chart(
        x="cache", x_label="prefix cache", y_label="seconds", lines={"ttft": "TTFT"}, kind="bar"
    ),
    run=run,
)
