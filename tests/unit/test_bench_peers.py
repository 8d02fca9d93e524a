"""Other engines beside Kvasir: every engine is asked for the same work in a turn."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.peers import engines, texts
from bench.peers.engines import Kvasir, LlamaCpp
from bench.peers.shapes import N_DECODE, N_DECODE_PROMPT, Prompts, Shapes, measure_calls

SHAPES = Shapes(2, prefill=(64,), batch=(3, 16, 8))


def test_an_engine_in_its_own_process_is_warmed_at_every_shape() -> None:
    calls: list[tuple[int, int, int]] = []

    def generate(prompts: Prompts, n_out: int) -> None:
        calls.append((len(prompts), len(prompts[0]), n_out))
        time.sleep(1e-5 * n_out)  # a clock may not move for nothing

    rates = measure_calls(generate, SHAPES)
    decode = [(1, N_DECODE_PROMPT, 1), (1, N_DECODE_PROMPT, N_DECODE)]
    assert calls == [
        (1, N_DECODE_PROMPT, 16),
        *(3 * decode),
        *(4 * [(1, 64, 1)]),
        (3, 16, 4),
        (3, 16, 8),
    ]
    assert list(rates) == ["decode", "prefill 64", "batch"]


def test_kvasir_times_one_batch_and_three_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    repeats: dict[str, str] = {}

    def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
        words = list(map(str, command))
        repeats[words[4]] = words[words.index("--repeat") + 1]
        rates = {"tokens_per_second": {"median": 5.0}}
        results = {"decode": rates, "prefill_64": rates, "output_tokens_per_second": {"median": 7}}
        Path(words[-1]).write_text(json.dumps({"results": results}))
        return ""

    monkeypatch.setattr(engines, "run", run)
    turn = Kvasir("Kvasir", Path("m.gguf")).turn(SHAPES)
    assert repeats == {"latency": "3", "throughput": "1"}
    assert turn.rates == {"decode": 5.0, "prefill 64": 5.0, "batch": 7.0}


def test_llama_cpp_gives_medians_and_its_second_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
        commands.append(list(map(str, command)))
        if "batched" not in commands[-1][0]:
            return json.dumps([{"avg_ts": 50.0, "samples_ts": [10.0, 100.0, 40.0]}])
        rows = [{"pl": 3, "tg": 4, "t": 9.0}, {"pl": 3, "tg": 8, "t": 2.0}]
        return "log\n" + "\n".join(map(json.dumps, rows))

    monkeypatch.setattr(engines, "run", run)
    monkeypatch.setattr(LlamaCpp, "_version", lambda self: "llama.cpp 1")
    turn = LlamaCpp("llama.cpp", Path("bin"), Path("m.gguf")).turn(SHAPES)
    assert turn.rates == {"decode": 40.0, "prefill 64": 40.0, "batch": 12.0}
    assert commands[0][commands[0].index("-r") + 1] == "3"
    assert commands[-1][commands[-1].index("-ntg") + 1] == "4,8"


def test_texts_of_a_shape_are_new_in_every_turn() -> None:
    shape = texts.Shape(n_texts=7, n_words=5, n_together=3, n_clients=2)
    first, second = (shape.requests(random.Random(seed)) for seed in (1, 2))
    assert [len(request) for request in first] == [3, 3, 1]
    assert all(len(text.split()) == 5 for request in first for text in request)
    assert first != second


def test_rates_of_texts_are_compared_by_their_medians(capsys: pytest.CaptureFixture[str]) -> None:
    turns = [
        {"engine": engine, "shape": vars(shape), "texts_per_s": rate * factor}
        for shape in texts.SHAPES
        for engine, factor in (("Kvasir", 4.0), ("llama-server", 1.0))
        for rate in (1.0, 5.0, 2.0)
    ]
    texts.report(turns, {}, None)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["Kvasir"], row["llama-server"], row["ratio"]) for row in rows] == [(8, 2, 4)] * 4
