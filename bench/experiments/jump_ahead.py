"""What it saves not to draw what a grammar forces."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import Any

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.programs import Vocabulary, asked, described, opened
from kvasir.offline.llm import LLM
from kvasir.validation.sampling import SamplingParams, StructuredOutputs

NAMES = (
    *("first_name", "last_name", "date_of_birth", "street_address", "postal_code", "city"),
    *("country", "phone_number", "email_address", "occupation", "employer", "annual_income"),
    *("marital_status", "number_of_children", "nationality", "passport_number"),
    *("insurance_provider", "policy_number", "emergency_contact", "preferred_language"),
)
FORM = {
    "type": "object",
    "properties": {name: {"enum": ["known", "unknown", "refused"]} for name in NAMES},
    "required": list(NAMES),
    "additionalProperties": False,
}
"""20 fields of a word each."""
LEAST = {1: 2.0, 64: 1.0}
"""Times as fast, by streams."""


def _compare(arms: dict[str, LLM], words: Vocabulary, n_streams: int, n_runs: int) -> Json:
    held = StructuredOutputs(json=FORM, disable_any_whitespace=True)
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=400, structured_outputs=held)
    found: dict[str, list[float]] = {name: [] for name in arms}
    is_same, n_tokens = True, 0
    for i in range(n_runs + 1):
        texts = [words.text(8, i, j) for j in range(n_streams)]
        answers = []
        for name, llm in arms.items():
            seconds, said = asked(llm, texts, params)
            answers.append(said)
            if i:  # the first compiles
                found[name].append(seconds)
        is_same &= answers[0] == answers[1]
        n_tokens = sum(map(len, answers[0]))
    pairs = zip(found["off"], found["on"], strict=True)
    return {
        "streams": n_streams,
        "faster": round(median(a / b for a, b in pairs), 3),
        "tokens": n_tokens,
        "is_same": is_same,
        **{f"{name}_seconds": round(median(values), 4) for name, values in found.items()},
        "runs": {name: [round(x, 4) for x in values] for name, values in found.items()},
    }


def run(settings: Settings) -> Outcome:
    n_runs, streams = settings.pick((5, (1, 64)), (1, (1, 2)))
    options: dict[str, Any] = {"enable_prefix_caching": False, "max_num_seqs": max(streams)}
    with ExitStack() as stack:
        arms = {
            name: stack.enter_context(opened(settings, **options, jump_ahead=name == "on"))
            for name in ("off", "on")
        }
        words = Vocabulary(arms["on"].get_tokenizer())
        points = [_compare(arms, words, n, n_runs) for n in streams]
        engine = described(settings, arms["on"])
    faster = {point["streams"]: point["faster"] for point in points}
    said = ", ".join(f"{value:.2f}x with {n} streams" for n, value in faster.items())
    return Outcome(
        measured=f"a form of {len(NAMES)} fields as fast as {said}",
        conditions=(
            f"each field one of three words, no white space, temperature 1, beside the same "
            f"without jump-ahead; medians of {n_runs} pairs, in turns"
        ),
        summary={f"faster_{n}": value for n, value in faster.items()},
        points=points,
        met=settings.quick or all(faster[n] >= least for n, least in LEAST.items()),
        identical=all(point["is_same"] for point in points),
        engine=engine,
    )


EXPERIMENT = Experiment(
    name="jump-ahead",
    title="What a grammar forces is not drawn",
    claim="compressed state machines halve the latency of JSON (Zheng et al., SGLang, 2024)",
    target="a form of 20 fixed fields twice as fast, and 64 streams never slower",
    uses_model=True,
    seconds=90,
    chart=Chart(
        x="streams",
        x_label="streams",
        y_label="seconds",
        lines={"off_seconds": "drawn one by one", "on_seconds": "forced tokens at once"},
        kind="bar",
    ),
    run=run,
)
