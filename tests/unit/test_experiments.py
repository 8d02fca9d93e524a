"""Experiments: the parts that judge, and a quick run of each on a tiny model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bench.experiments.__main__ import experiments
from bench.experiments.base import Chart, Settings
from bench.experiments.drive import (
    Run,
    Trace,
    VirtualClock,
    at_once,
    drive,
    equal_tokens,
)
from bench.experiments.engines import fake_engine, greedy, tokens
from bench.experiments.fair_tenants import jain
from bench.experiments.knee import knee, operating_point
from bench.experiments.lengths import (
    SHAREGPT_OUTPUT,
    SHAREGPT_PROMPT,
    sharegpt_like,
    variation_of,
    with_variation,
)
from bench.experiments.plot import MISSING, draw
from bench.experiments.registry import EXPERIMENTS, listing, select
from bench.experiments.run import run_experiment, table, write_table
from kvasir.cli.main import run_command
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, KvasirError
from tests import tiny
from tests.sizes import config_of

CONFIG = config_of(
    max_model_len=64, max_num_seqs=2, max_num_batched_tokens=16, n_blocks=16, block_size=16
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("tiny-llama")))


@pytest.fixture(scope="module")
def quick(model: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an experiment's quick run, of which there is one."""

    @cache
    def run(name: str) -> Path:
        (experiment,) = select([name])
        folder, said = tmp_path_factory.mktemp(name), []
        options = EngineOptions(model=model, threads=1, kv_memory="32MiB")
        run_experiment(experiment, Settings(options=options, quick=True), folder, said.append)
        assert said in ([], [MISSING])
        return folder

    return run


def document_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{folder.name[:-1]}.json").read_text())
    return found


@pytest.mark.parametrize("name", [experiment.name for experiment in EXPERIMENTS])
def test_a_quick_run_gives_json_and_a_row(name: str, quick: Callable[[str], Path]) -> None:
    (experiment,) = select([name])
    folder = quick(name)
    document = document_of(folder)
    results = document["results"]
    assert results["identical"] is not False
    assert (results["identical"] is None) == (
        name in ("draft-rules", "e13-kv-types", "grammar-cost", "scheduler-cost")
    )
    assert document["machine"]["cpus"] >= 1
    assert document["command"].startswith("python -m bench.experiments")
    assert document["row"]["measured"]
    chart = experiment.chart
    for point in results["points"]:
        assert chart.x in point
    for line in chart.lines:
        values = [point[line] for point in results["points"] if point.get(line) is not None]
        assert values
        assert all(value >= 0 for value in values)
    row = write_table(folder).splitlines()[-1]
    assert row.startswith(f"| {name} |")
    assert "QUICK RUN" in row


def test_names_are_unique_and_chosen_by_number_or_whole() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert select([]) == EXPERIMENTS
    assert [x.name for x in select(["e5", "e1-kv-waste"])] == ["e5-shared-prefix", "e1-kv-waste"]
    with pytest.raises(ConfigError, match="no experiment 'e99'"):
        select(["e99"])
    assert len(listing().splitlines()) == len(EXPERIMENTS)


def test_the_command_lists_and_runs(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["--list"], experiments) == 0
    assert "e1-kv-waste" in capsys.readouterr().out
    words = ["e24", "--quick", "--model", model, "--output", str(tmp_path)]
    assert run_command(words, experiments) == 0
    assert capsys.readouterr().out.startswith("e24-slo: ")
    assert (tmp_path / "README.md").exists()
    assert run_command(["e99"], experiments) == 2


def test_waste_and_concurrency_of_contiguous_memory_are_known(
    quick: Callable[[str], Path],
) -> None:
    """Four sequences of 256 reserved, whatever they need."""
    points = document_of(quick("e2-concurrency"))["results"]["points"]
    by_policy = {point["policy"]: point for point in points}
    assert by_policy["contiguous"]["peak"] == 4
    assert by_policy["paged"]["mean"] > by_policy["contiguous"]["mean"]


def test_virtual_time_passes_with_steps_and_arrivals() -> None:
    made = fake_engine(CONFIG, lambda plan: 2.0)
    late = greedy(2, tokens(256, 4, 2), 2)
    run = drive(made.engine, [(0.0, greedy(1, tokens(256, 4, 1), 3)), (100.0, late)], made.clock)
    assert run.traces[1].times == [2.0, 4.0, 6.0]
    assert run.traces[1].gaps == [2.0, 2.0]
    assert (run.traces[2].times, run.traces[2].ttft) == ([102.0, 104.0], 2.0)
    assert (run.seconds, run.n_outputs) == (104.0, 5)


def test_requests_of_one_time_arrive_in_their_order() -> None:
    made = fake_engine(CONFIG)
    run = drive(made.engine, at_once(greedy(i, tokens(256, 4, i), 2) for i in range(5)), made.clock)
    assert list(run.traces) == [0, 1, 2, 3, 4]
    assert [run.traces[i].ttft for i in range(5)] == [1.0, 1.0, 3.0, 3.0, 5.0]


def test_a_failed_request_ends_the_measurement() -> None:
    made = fake_engine(CONFIG)
    banned = tuple((token, -float("inf")) for token in range(256))
    request = greedy(1, tokens(256, 4, 1), 3)
    request = replace(request, params=replace(request.params, logit_bias=banned))
    with pytest.raises(KvasirError, match=r"a measured request failed: .*every token is banned"):
        drive(made.engine, at_once([request]), made.clock)


def _run(**traces: Trace) -> Run:
    clock = VirtualClock()
    made = fake_engine(CONFIG)
    return Run(made.engine, clock, 0.0, {int(name[1:]): trace for name, trace in traces.items()})


def test_equal_tokens_compares_what_both_have() -> None:
    whole = _run(r1=Trace(0.0, [1, 2, 3], finish="length"))
    assert equal_tokens(whole, _run(r1=Trace(0.0, [1, 2, 3], finish="length")))
    assert not equal_tokens(whole, _run(r1=Trace(0.0, [1, 2, 4], finish="length")))
    assert not equal_tokens(whole, _run(r1=Trace(0.0, [1, 2], finish="length")))
    assert equal_tokens(whole, _run(r1=Trace(0.0, [1, 2], finish="cancelled")))
    assert not equal_tokens(whole, _run(r1=Trace(0.0, [1, 3], finish="cancelled")))
    assert equal_tokens(whole, _run(r2=Trace(0.0, [9])))


def test_the_knee_is_where_the_curve_bends() -> None:
    latencies = [1.0, 1.1, 1.2, 1.5, 3.0, 6.0]
    rates = [10.0, 20.0, 40.0, 80.0, 90.0, 92.0]
    assert knee(latencies, rates) == 3
    assert operating_point(rates) == 3
    assert knee([1.0], [5.0]) == 0
    with pytest.raises(ValueError, match="2 latencies for 1 rates"):
        knee([1.0, 2.0], [1.0])


def test_jain_is_one_for_equals_and_least_for_one_that_has_all() -> None:
    assert jain([3.0, 3.0]) == 1.0
    assert jain([4.0, 0.0]) == 0.5
    assert jain([0.0, 0.0]) == 1.0


def test_two_tenants_share_what_first_come_first_served_does_not(
    quick: Callable[[str], Path],
) -> None:
    summary = document_of(quick("fair-tenants"))["results"]["summary"]
    assert summary["jain"] >= 0.95 > summary["jain_fcfs"]


def test_lengths_have_the_means_that_are_stated() -> None:
    lengths = sharegpt_like(20_000, 10**6)
    assert np.mean([x.prompt for x in lengths]) == pytest.approx(SHAREGPT_PROMPT, rel=0.05)
    assert np.mean([x.output for x in lengths]) == pytest.approx(SHAREGPT_OUTPUT, rel=0.05)
    assert sharegpt_like(5, 2048) == sharegpt_like(5, 2048)
    assert max(x.total for x in sharegpt_like(2000, 512)) <= 512
    assert min(min(x.prompt, x.output) for x in sharegpt_like(2000, 512)) >= 1
    drawn = with_variation(20_000, 50, 0.5, 10**6)
    assert variation_of(drawn) == pytest.approx(0.5, rel=0.05)
    assert variation_of(with_variation(10, 50, 0.0, 100)) == 0.0


CHART = Chart(x="x", x_label="x", y_label="y", lines={"y": "line", "z": "other"})


def test_without_matplotlib_the_plot_is_refused_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_svg", None)
    assert draw("title", CHART, [{"x": 1, "y": 2}], tmp_path / "a.svg") == MISSING
    assert not (tmp_path / "a.svg").exists()


@pytest.mark.parametrize("kind", ["line", "bar"])
def test_a_plot_is_an_svg(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    chart = Chart(x="x", x_label="x", y_label="y", lines=CHART.lines, kind=kind)
    points = [{"x": 1, "y": 2.0, "z": None}, {"x": 2, "y": 3.0, "z": 1.0}]
    assert draw("title", chart, points, tmp_path / "a.svg") is None
    assert "</svg>" in (tmp_path / "a.svg").read_text()


def test_the_table_marks_what_cannot_be_trusted() -> None:
    row = {"claim": "a|b", "target": "t", "measured": "m", "conditions": "c"}
    document = {"kind": "e1", "row": row, "quick": False, "disturbed": True}
    text = table([{**document, "results": {"identical": False, "met": True}}])
    assert (
        text.splitlines()[-1] == "| e1 | a/b | t | yes | m | DISTURBED by other processes; c | NO |"
    )
