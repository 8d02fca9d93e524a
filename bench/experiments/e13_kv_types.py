"""E13: how many requests run at a time in the same bytes with narrower KV types."""

from __future__ import annotations

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive
from bench.experiments.engines import Made, Models, greedy, tokens

TYPES = ("bfloat16", "int8", "fp8_e4m3", "fp8_e5m2")


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    n_in, n_out, n_fit, n = settings.pick((96, 32, 16, 64), (24, 8, 4, 16))
    with models.engine(kv_cache_dtype="bfloat16", max_num_seqs=2, kv_memory="64MiB") as made:
        n_blocks = n_fit * -(-(n_in + n_out) // made.sizes.block_size)
        n_bytes = n_blocks * made.block_bytes
    points: list[Json] = []
    described: Json = {}
    for kind in TYPES:
        changes = {"kv_cache_dtype": kind, "kv_memory": n_bytes, "max_num_seqs": n}
        changes["max_num_batched_tokens"] = n * n_in  # the memory is full from the first step on
        with models.engine(
            enable_prefix_caching=False, max_model_len=n_in + n_out, **changes
        ) as made:
            points.append({"type": kind, **_serve(made, n, n_in, n_out)})
            described = described or made.described
    base = points[0]
    for point in points:
        point["sequences_ratio"] = round(point["sequences"] / base["sequences"], 3)
        point["bytes_ratio"] = round(point["bytes_per_token"] / base["bytes_per_token"], 4)
    words = [
        f"{p['type']} {p['sequences_ratio']:.2f}x ({p['bytes_ratio']:.0%} of the bytes)"
        for p in points[1:]
    ]
    return Outcome(
        measured=f"{', '.join(words)}; bfloat16 runs {base['sequences']:.1f} at a time",
        conditions=(
            f"{n_bytes} bytes of KV memory, {n} requests of {n_in} + {n_out} tokens at once; mean "
            "running while others wait; the types compute different numbers on purpose, their "
            "perplexity is measured by python -m bench.perplexity"
        ),
        summary={point["type"]: point["sequences_ratio"] for point in points},
        points=points,
        met=min(point["sequences_ratio"] for point in points[1:]) >= 2,
        identical=None,
        engine=described,
    )


def _serve(made: Made, n: int, n_in: int, n_out: int) -> Json:
    running: list[int] = []

    def watch(run: Run) -> None:
        stats = made.engine.stats()
        if stats.n_waiting:
            running.append(stats.n_running)

    requests = [greedy(i, tokens(made.sizes.vocab_size, n_in, 1, i), n_out) for i in range(n)]
    found = drive(made.engine, at_once(requests), made.clock, watch)
    return {
        "sequences": round(sum(running) / len(running), 2) if running else n,
        "peak": max(running, default=n),
        "blocks": made.sizes.n_blocks,
        "bytes_per_token": made.block_bytes / made.sizes.block_size,
        "seconds": round(found.seconds, 3),
        "preemptions": made.engine.stats().n_preemptions,
    }


EXPERIMENT = Experiment(
    name="e13-kv-types",
    title="Requests at a time in the same KV bytes",
    claim="an FP8 KV cache halves its memory: 2x concurrent requests",
    target="2x",
    uses_model=True,
    seconds=15,
    chart=Chart(
        x="type", x_label="type of keys and values", y_label="requests at a time",
        lines={"sequences": "mean", "peak": "peak"}, kind="bar",
    ),
    run=run,
)  # fmt: skip
