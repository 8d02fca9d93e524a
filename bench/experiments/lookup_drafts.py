"""What drafts from earlier texts gain where texts come again, and lose where none do."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import Any

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.programs import Vocabulary, asked, described, opened
from kvasir.offline.llm import LLM
from kvasir.validation.sampling import SamplingParams

CONFIG = {"method": "suffix"}
LEAST = {"again": {1: 3.0}, "new": {1: 0.98, 4: 0.98, 16: 0.98, 64: 0.98}}
"""Times as fast as without drafts, by workload and streams."""


def _compare(
    arms: dict[str, LLM], words: Vocabulary, what: str, n_streams: int, n_out: int, n_runs: int
) -> Json:
    is_again = what == "again"
    params = SamplingParams(
        temperature=0.0 if is_again else 1.0, seed=7, max_tokens=n_out, ignore_eos=True
    )
    found: dict[str, list[float]] = {name: [] for name in arms}
    is_same = True
    for i in range(n_runs):
        texts = [words.text(24, i, j) for j in range(n_streams)]
        answers = []
        for name in sorted(arms, reverse=bool(i % 2)):
            if is_again:
                asked(arms[name], texts, params)
            seconds, said = asked(arms[name], texts, params)
            answers.append(said)
            found[name].append(seconds)
        is_same &= answers[0] == answers[1]
    pairs = zip(found["off"], found["on"], strict=True)
    return {
        "workload": what,
        "streams": n_streams,
        "point": f"{what}, {n_streams}",
        "faster": round(median(a / b for a, b in pairs), 3),
        "is_same": is_same,
        **{f"{name}_seconds": round(median(values), 4) for name, values in found.items()},
        "runs": {name: [round(x, 4) for x in values] for name, values in found.items()},
    }


def run(settings: Settings) -> Outcome:
    n_out, n_runs, cut = settings.pick((128, 5, 4), (8, 1, 1))
    options: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": 64}
    wanted = [(what, n) for what, least in LEAST.items() for n in list(least)[:cut]]
    with ExitStack() as stack:
        arms = {
            "off": stack.enter_context(opened(settings, **options)),
            "on": stack.enter_context(opened(settings, **options, speculative_config=CONFIG)),
        }
        words = Vocabulary(arms["on"].get_tokenizer())
        points = [_compare(arms, words, what, n, n_out, n_runs) for what, n in wanted]
        engine = described(settings, arms["on"])
    said = ", ".join(f"{point['point']} streams {point['faster']:.2f}x" for point in points)
    return Outcome(
        measured=f"answers that were given before (again) and others (new): {said}",
        conditions=(
            f"{n_out} outputs; again: greedy, asked once before; new: temperature 1, random words; "
            f"suffix drafts beside none, medians of {n_runs} pairs in turns"
        ),
        summary={point["point"]: point["faster"] for point in points},
        points=points,
        met=settings.quick
        or all(point["faster"] >= LEAST[point["workload"]][point["streams"]] for point in points),
        identical=all(point["is_same"] for point in points),
        engine=engine,
    )


EXPERIMENT = Experiment(
    name="lookup-drafts",
    title="Drafts from texts that were there before",
    claim="drafts from earlier outputs are up to 5.3x as fast (SuffixDecoding, arXiv 2411.04975)",
    target="an answer given before 3x as fast with one stream, others never below 0.98x",
    uses_model=True,
    seconds=150,
    chart=Chart(
        x="point",
        x_label="workload, streams",
        y_label="seconds",
        lines={"off_seconds": "one token a step", "on_seconds": "with drafts"},
        kind="bar",
    ),
    run=run,
)
