"""E23 as a program: three branches of one text, beside the same as three requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import kvasir.lang as sgl
from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.programs import GREEDY, Vocabulary, continued, described, opened
from kvasir.offline.llm import LLM

N_BRANCHES = 3


@sgl.function
def branching(s: sgl.ProgramState, shared: str, own: list[str], n_out: int) -> list[str]:
    s += shared
    forks = s.fork(len(own))
    for fork, text in zip(forks, own, strict=True):
        fork += text + sgl.gen("x", n_out)
    return [fork["x"] for fork in forks]


Arm = Callable[[LLM, str, list[str], int, sgl.Trace], list[str]]


def _in_turn(llm: LLM, shared: str, own: list[str], n_out: int, trace: sgl.Trace) -> list[str]:
    return [
        continued.run(shared + x, n_out, backend=llm, sampling_params=GREEDY, trace=trace)
        for x in own
    ]


def _at_once(llm: LLM, shared: str, own: list[str], n_out: int, trace: sgl.Trace) -> list[str]:
    given = [{"text": shared + x, "n_out": n_out} for x in own]
    return continued.run_batch(given, backend=llm, sampling_params=GREEDY, trace=trace)


def _forked(llm: LLM, shared: str, own: list[str], n_out: int, trace: sgl.Trace) -> list[str]:
    found: list[str] = branching.run(
        shared, own, n_out, backend=llm, sampling_params=GREEDY, trace=trace
    )
    return found


ARMS: dict[str, Arm] = {"in turn": _in_turn, "at once": _at_once, "forked": _forked}


def run(settings: Settings) -> Outcome:
    n_shared, n_own, n_out, n_runs = settings.pick((1000, 20, 100, 5), (64, 8, 4, 1))
    seconds: dict[str, list[float]] = {name: [] for name in ARMS}
    computed: dict[str, int] = {}
    answers: list[list[str]] = []
    with opened(settings, enable_prefix_caching=False) as llm:
        words = Vocabulary(llm.get_tokenizer())
        ARMS["forked"](llm, words.text(n_shared, 9), [words.text(n_own, 9)], 2, sgl.Trace())
        for i in range(n_runs):
            shared = words.text(n_shared, i)
            own = [words.text(n_own, i, branch) for branch in range(N_BRANCHES)]
            for name, arm in ARMS.items():
                trace = sgl.Trace()
                began = time.perf_counter()
                answers.append(arm(llm, shared, own, n_out, trace))
                seconds[name].append(time.perf_counter() - began)
                computed[name] = trace.n_computed
        engine = described(settings, llm)
    medians = {name: median(found) for name, found in seconds.items()}
    tokens = computed["at once"] / computed["forked"]
    turn, once = (
        median(a / b for a, b in zip(seconds[name], seconds["forked"], strict=True))
        for name in ("in turn", "at once")
    )
    points: list[Json] = [
        {
            "branches": name,
            "seconds": round(medians[name], 4),
            "runs": [round(x, 4) for x in seconds[name]],
            "prefilled": computed[name],
        }
        for name in ARMS
    ]
    return Outcome(
        measured=(
            f"{tokens:.2f}x fewer prompt tokens computed ({computed['at once']} to "
            f"{computed['forked']}), {turn:.1f}x faster than in turn, {once:.1f}x faster than at "
            "once"
        ),
        conditions=(
            f"a program that forks {N_BRANCHES} ways after {n_shared} words, {n_own} more and "
            f"{n_out} outputs each, beside {N_BRANCHES} programs in turn and in a batch; no prefix "
            f"cache, so that branches share by their fork alone; medians of {n_runs} turns"
        ),
        summary={
            "tokens_ratio": round(tokens, 2),
            "in_turn_ratio": round(turn, 2),
            "at_once_ratio": round(once, 2),
        },
        points=points,
        met=settings.quick or (tokens >= 2.8 and turn >= 2.5 and once >= 1.6),
        identical=all(
            answers[at] == answers[at + 1] == answers[at + 2]
            for at in range(0, len(answers), len(ARMS))
        ),
        engine=engine,
    )


EXPERIMENT = Experiment(
    name="program-fork",
    title="A program that forks three ways",
    claim="programs that fork share what they begin with (Zheng et al., SGLang, 2024)",
    target="2.8x fewer prompt tokens, 2.5x faster than in turn, 1.6x faster than at once",
    uses_model=True,
    seconds=60,
    chart=Chart(
        x="branches",
        x_label="branches",
        y_label="seconds",
        lines={"seconds": "all answers"},
        kind="bar",
    ),
    run=run,
)
