"""E7: the tenth turn of a conversation over a long document, kept, reloaded and recomputed."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive, equal_tokens
from bench.experiments.engines import Made, Models, greedy, tokens

LAST = 1000
"""Request id of the turn that is compared."""


def run(settings: Settings) -> Outcome:
    models = Models(settings)
    n_document, n_turns = settings.pick((3000, 10), (96, 3))
    with models.engine(max_num_seqs=4) as made:
        prompt = _talk(made, n_document, n_turns)
        kept = _ask(made, prompt)
    with TemporaryDirectory(prefix="kvasir-kv-") as folder:
        with models.engine(kv_disk=folder, max_num_seqs=4) as made:
            is_same_talk = _talk(made, n_document, n_turns) == prompt
        with models.engine(kv_disk=folder, max_num_seqs=4) as made:
            _warm_up(made)
            restarted = _ask(made, prompt)
            described = made.described
    with models.engine(enable_prefix_caching=False, max_num_seqs=4) as made:
        _warm_up(made)
        computed = _ask(made, prompt)
    arms = {"recomputed": computed, "kept": kept, "after a restart": restarted}
    points = [_point(name, found) for name, found in arms.items()]
    ratios = [points[0]["ttft"] / point["ttft"] for point in points]
    return Outcome(
        measured=(
            f"first token of turn {n_turns} {ratios[1]:.1f}x sooner than recomputed "
            f"({points[1]['ttft'] * 1e3:.0f} of {points[0]['ttft'] * 1e3:.0f} ms), after a restart "
            f"{ratios[2]:.1f}x ({points[2]['ttft'] * 1e3:.0f} ms, "
            f"{points[2]['cached_tokens']} tokens found on disk)"
        ),
        conditions=(
            f"a document of {n_document} tokens, then turns of 40 tokens with answers of 24; the "
            f"last prompt has {len(prompt)} tokens; the files may be in the system's page cache"
        ),
        summary={"kept_ratio": round(ratios[1], 2), "restart_ratio": round(ratios[2], 2)},
        points=points,
        met=min(ratios[1:]) >= 13,
        identical=is_same_talk and equal_tokens(computed, kept, restarted),
        engine=described,
    )


def _ask(made: Made, prompt: tuple[int, ...]) -> Run:
    return drive(made.engine, at_once([greedy(LAST, prompt, 16)]), made.clock)


def _warm_up(made: Made) -> None:
    drive(made.engine, at_once([greedy(0, tokens(made.sizes.vocab_size, 40, 9), 2)]), made.clock)


def _talk(made: Made, n_document: int, n_turns: int) -> tuple[int, ...]:
    """All turns but the last; the prompt of the last."""
    said = tokens(made.sizes.vocab_size, n_document, 1)
    for turn in range(1, n_turns):
        prompt = (*said, *tokens(made.sizes.vocab_size, 40, 2, turn))
        found = drive(made.engine, at_once([greedy(turn, prompt, 24)]), made.clock)
        said = (*prompt, *found.traces[turn].tokens)
    return (*said, *tokens(made.sizes.vocab_size, 40, 2, n_turns))


def _point(name: str, found: Run) -> Json:
    trace = found.traces[LAST]
    return {
        "arm": name,
        "ttft": round(trace.ttft, 5),
        "reply": round(trace.times[-1], 5),
        "cached_tokens": trace.n_cached,
    }


EXPERIMENT = Experiment(
    name="e7-long-conversation",
    title="Tenth turn of a long conversation",
    claim="13x faster replies when the conversation stays cached (Text Generation Inference 3)",
    target="at least 13x, also after a restart",
    uses_model=True,
    seconds=10,
    chart=Chart(
        x="arm", x_label="conversation", y_label="seconds", lines={"ttft": "first token"},
        kind="bar",
    ),
    run=run,
)  # fmt: skip
