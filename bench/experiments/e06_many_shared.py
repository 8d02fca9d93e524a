"""E6: a thousand requests that share 950 of 1000 tokens."""

from __future__ import annotations

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive, equal_tokens
from bench.experiments.engines import Made, Models, greedy, tokens


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    n_shared, n_own = settings.pick((950, 50), (48, 8))
    n_cached, n_plain = settings.pick((1000, 24), (12, 4))
    with models.engine(enable_prefix_caching=True, max_num_seqs=16) as made:
        cached, cached_tokens = _serve(made, n_cached, (n_shared, n_own))
        described = made.described
    with models.engine(enable_prefix_caching=False, max_num_seqs=16) as made:
        plain, _ = _serve(made, n_plain, (n_shared, n_own))
    all_tokens = n_cached * (n_shared + n_own)
    scaled = plain.seconds * n_cached / n_plain
    points: list[Json] = [
        {"cache": "on", "seconds": round(cached.seconds, 2), "prefilled": cached_tokens},
        {
            "cache": "off (scaled)",
            "seconds": round(scaled, 2),
            "prefilled": all_tokens,
            "measured_requests": n_plain,
            "measured_seconds": round(plain.seconds, 2),
        },
    ]
    return Outcome(
        measured=(
            f"tokens {all_tokens / cached_tokens:.1f}x fewer ({all_tokens} to {cached_tokens}); "
            f"wall clock {scaled / cached.seconds:.1f}x ({cached.seconds:.1f} s; without the "
            f"cache {scaled:.0f} s, SCALED from {n_plain} measured requests)"
        ),
        conditions=(
            f"{n_cached} requests of {n_shared} shared + {n_own} new tokens, 1 output each, all "
            f"at once, 16 at a time; the arm without cache runs {n_plain} of them"
        ),
        summary={
            "tokens_ratio": round(all_tokens / cached_tokens, 2),
            "seconds_ratio": round(scaled / cached.seconds, 2),
            "seconds_ratio_is_scaled": n_plain < n_cached,
        },
        points=points,
        met=round(all_tokens / cached_tokens, 1) >= 19.6 and scaled / cached.seconds >= 10,
        identical=equal_tokens(plain, cached),
        engine=described,
    )


def _serve(made: Made, n: int, sizes: tuple[int, int]) -> tuple[Run, int]:
    """The run, and how many prompt tokens were computed."""
    engine, (n_shared, n_own) = made.engine, sizes
    vocab_size = made.sizes.vocab_size
    shared = tokens(vocab_size, n_shared, 1)
    requests = [greedy(i, (*shared, *tokens(vocab_size, n_own, 2, i)), 1) for i in range(n)]
    warm = greedy(n, tokens(vocab_size, n_shared, 3), 1)
    drive(engine, at_once([warm]), made.clock)
    before = engine.stats()
    run = drive(engine, at_once(requests), made.clock)
    after = engine.stats()
    n_prompt = after.prompt_tokens - before.prompt_tokens
    return run, n_prompt - (after.prefix_hits - before.prefix_hits)


EXPERIMENT = Experiment(
    name="e6-many-shared",
    title="1000 requests of 950 shared + 50 new tokens",
    claim="1,000,000 prefill tokens become 50,950 (19.6x), 45 s become 4.2 s (10.7x) "
    "(Zheng et al., SGLang, 2024)",
    target="19.6x fewer tokens, at least 10x wall clock",
    uses_model=True,
    seconds=30,
    chart=Chart(
        x="cache", x_label="prefix cache", y_label="seconds", lines={"seconds": "wall clock"},
        kind="bar",
    ),
    run=run,
)  # fmt: skip
