"""What streams lose that keep to a grammar, and streams beside nothing of the kind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import msgspec

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.programs import GREEDY, Vocabulary, described, opened
from kvasir.offline.llm import LLM
from kvasir.validation.sampling import SamplingParams, StructuredOutputs

ENTRY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["animal", "plant", "mineral"]},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 4},
    },
    "required": ["name", "kind", "count", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ENTRY, "minItems": 1000}
"""No answer of some hundred tokens reaches its end."""
MOST_LOST, MOST_LOST_LARGE = {1: 0.03, 64: 0.04}, {1: 0.01, 64: 0.01}
"""By streams."""
N_OUT, N_OUT_LARGE = {1: 128, 64: 128}, {1: 64, 64: 24}
"""Outputs, by streams."""
LARGE = 500 * 10**6
"""Bytes of weights from which a step takes so long that masks have to cost next to nothing."""


def _seconds(
    llm: LLM, texts: list[str], params: list[SamplingParams], n_streams: int, n_out: int
) -> float:
    """Raises ValueError when an answer ended early: rates would be of other work."""
    began, n_early = time.perf_counter(), 0
    for i in range(0, len(texts), n_streams):
        some = slice(i, i + n_streams)
        outputs = llm.generate(texts[some], params[some], use_tqdm=False)
        n_early += sum(len(output.outputs[0].token_ids) != n_out for output in outputs)
    seconds = time.perf_counter() - began
    if n_early:
        raise ValueError(f"{n_early} answers ended early")
    return seconds


def compare(
    llm: LLM, words: Vocabulary, schemas: Sequence[Json], n_streams: int, n_out: int, n_runs: int
) -> Json:
    """Answers of ``n_out`` tokens, one to each of ``schemas``, which no answer ends, and as many
    without one, ``n_streams`` at a time."""
    free = msgspec.structs.replace(GREEDY, max_tokens=n_out, temperature=1.0, seed=7)
    held = [
        SamplingParams(
            temperature=1.0,
            seed=7,
            max_tokens=n_out,
            structured_outputs=StructuredOutputs(json=schema),
        )
        for schema in schemas
    ]
    arms = {"plain": [free] * len(schemas), "grammar": held}
    found: dict[str, list[float]] = {name: [] for name in arms}
    for i in range(n_runs + 1):
        texts = [words.text(8, i, j) for j in range(len(schemas))]
        for name, params in arms.items():
            seconds = _seconds(llm, texts, params, n_streams, n_out)
            if i:  # the first compiles
                found[name].append(seconds)
    pairs = zip(found["plain"], found["grammar"], strict=True)
    return {
        "streams": n_streams,
        "lost": round(1 - median(a / b for a, b in pairs), 4),
        **{
            f"{name}_tokens_per_second": round(len(schemas) * n_out / median(values), 1)
            for name, values in found.items()
        },
        "runs": {name: [round(x, 4) for x in values] for name, values in found.items()},
    }


def run(settings: Settings) -> Outcome:
    n_runs, streams = settings.pick((5, (1, 64)), (1, (1, 2)))
    options = {"enable_prefix_caching": False, "max_num_seqs": max(streams), "jump_ahead": False}
    with opened(settings, **options) as llm:
        words = Vocabulary(llm.get_tokenizer())
        engine = described(settings, llm)
        is_large = engine["weight_bytes"] >= LARGE
        n_out = settings.pick(N_OUT_LARGE if is_large else N_OUT, dict.fromkeys(streams, 4))
        points = [compare(llm, words, [SCHEMA] * n, n, n_out[n], n_runs) for n in streams]
    lost = {point["streams"]: point["lost"] for point in points}
    most = MOST_LOST_LARGE if is_large else MOST_LOST
    lengths = " and ".join(map(str, n_out.values()))
    said = ", ".join(f"{value:.1%} with {n} streams" for n, value in lost.items())
    return Outcome(
        measured=f"grammars lose {said}",
        conditions=(
            f"a JSON schema that no answer ends, temperature 1, {lengths} outputs each, beside as "
            f"many without it; grammars compiled before, no forced tokens ahead; medians of "
            f"{n_runs} pairs, in turns"
        ),
        summary={f"lost_{n}": value for n, value in lost.items()},
        points=points,
        met=settings.quick or all(lost[n] <= most[n] for n in streams),
        identical=None,
        engine=engine,
    )


EXPERIMENT = Experiment(
    name="grammar-cost",
    title="What a grammar costs",
    claim="masks computed beside the step cost next to nothing (Dong et al., XGrammar, 2024)",
    target="at most 3 % of one stream's tokens a second and 4 % of 64 streams' on SmolLM2-135M, "
    "1 % on Qwen2.5-Coder-1.5B",
    uses_model=True,
    seconds=120,
    chart=Chart(
        x="streams",
        x_label="streams",
        y_label="tokens a second",
        lines={"plain_tokens_per_second": "plain", "grammar_tokens_per_second": "grammar"},
        kind="bar",
    ),
    run=run,
)
