"""What a batch of programs costs beside the same requests in one call."""

from __future__ import annotations

import time
from statistics import median

import msgspec

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.programs import GREEDY, Vocabulary, continued, described, opened


def run(settings: Settings) -> Outcome:
    n_programs, n_in, n_out, n_runs = settings.pick((64, 64, 64, 5), (4, 8, 4, 1))
    seconds: dict[str, list[float]] = {"generate": [], "run_batch": []}
    is_same = True
    with opened(settings, enable_prefix_caching=False, max_num_seqs=n_programs) as llm:
        words = Vocabulary(llm.get_tokenizer())
        params = msgspec.structs.replace(GREEDY, max_tokens=n_out)
        llm.generate([words.text(n_in, 99, j) for j in range(n_programs)], params, use_tqdm=False)
        for i in range(n_runs):
            texts = [words.text(n_in, i, j) for j in range(n_programs)]
            began = time.perf_counter()
            outputs = llm.generate(texts, params, use_tqdm=False)
            seconds["generate"].append(time.perf_counter() - began)
            given = [{"text": text, "n_out": n_out} for text in texts]
            began = time.perf_counter()
            found = continued.run_batch(given, backend=llm, sampling_params=GREEDY)
            seconds["run_batch"].append(time.perf_counter() - began)
            is_same &= found == [output.outputs[0].text for output in outputs]
        engine = described(settings, llm)
    rates = {name: n_programs * n_out / median(found) for name, found in seconds.items()}
    pairs = zip(seconds["generate"], seconds["run_batch"], strict=True)
    ratios = sorted(plain / programs for plain, programs in pairs)
    ratio = median(ratios)
    points: list[Json] = [
        {
            "call": name,
            "tokens_per_second": round(rates[name], 1),
            "runs": [round(x, 4) for x in seconds[name]],
        }
        for name in seconds
    ]
    return Outcome(
        measured=(
            f"{ratio:.2f}x the rate of the plain batch ({ratios[0]:.2f}x to {ratios[-1]:.2f}x): "
            f"{rates['run_batch']:.0f} of {rates['generate']:.0f} tokens/s"
        ),
        conditions=(
            f"{n_programs} programs of one call, {n_in} words and {n_out} outputs each, beside one "
            f"generate of the same; no prefix cache; medians of {n_runs} pairs, in turns"
        ),
        summary={"ratio": round(ratio, 3)},
        points=points,
        met=settings.quick or ratio >= 0.9,
        identical=is_same,
        engine=engine,
    )


EXPERIMENT = Experiment(
    name="program-batch",
    title="A batch of programs beside a plain batch",
    claim="a frontend language costs little beside the model (no figure in the sources)",
    target="at least 0.9x the rate of the plain batch",
    uses_model=True,
    seconds=90,
    chart=Chart(
        x="call",
        x_label="call",
        y_label="tokens per second",
        lines={"tokens_per_second": "64 programs"},
        kind="bar",
    ),
    run=run,
)
