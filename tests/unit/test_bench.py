"""Measuring: the arithmetic of the reports, on an engine that computes nothing."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from kvasir import _native
from kvasir.bench import fingerprint as measured_by
from kvasir.bench.ceilings import READ_SIZES, bandwidth_for, changed, mean_ceilings
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.latency import LatencySettings, measure_latency
from kvasir.bench.measured import decode_read
from kvasir.bench.memory import _huge_bytes, memory_of, weight_files
from kvasir.bench.planned import planned_executor
from kvasir.bench.report import command_line, is_disturbed, summary, without_home, write
from kvasir.bench.start import flags
from kvasir.bench.throughput import ThroughputSettings, measure_throughput
from kvasir.bench.workload import TokenTimes, Workload
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.engine.build import build_engine


@pytest.fixture
def workload() -> Workload:
    options = EngineOptions(executor="fake", max_model_len=256, kv_memory="1MiB")
    return Workload(build_engine(options))


def test_a_timeline_counts_gaps() -> None:
    line = TokenTimes([0.5, 0.6, 0.7])
    assert line.first == 0.5
    assert line.decode_rate == pytest.approx(10.0)
    assert TokenTimes([0.5]).decode_rate == 0.0


def test_every_request_gives_its_tokens(workload: Workload) -> None:
    timelines = workload.run(3, 20, 7)
    assert [len(timeline.tokens) for timeline in timelines] == [7, 7, 7]
    assert all(timeline.tokens == sorted(timeline.tokens) for timeline in timelines)


def test_prompts_are_fixed_and_differ(workload: Workload) -> None:
    one, same = workload._request(16, 1, 3, 0), workload._request(16, 1, 3, 0)
    other_run, other_request = workload._request(16, 1, 4, 0), workload._request(16, 1, 3, 1)
    assert one.prompt == same.prompt
    assert len({one.prompt, other_run.prompt, other_request.prompt}) == 3


def test_a_request_too_long_names_the_remedy(workload: Workload) -> None:
    with pytest.raises(ConfigError, match=r"250 \+ 10 tokens exceed max_model_len 256"):
        workload.run(1, 250, 10)


def test_latency_reports_what_was_asked(workload: Workload) -> None:
    settings = LatencySettings(input_len=8, output_len=5, prefill=(32, 4096), repeat=2)
    results = measure_latency(workload, settings)
    decode = results["decode"]
    assert len(decode["tokens_per_second"]["runs"]) == len(decode["foreign"]) == 2
    assert decode["tokens_per_second"]["median"] > 0
    prefill = results["prefill_32"]
    first = prefill["seconds_to_first_token"]["runs"]
    rates = prefill["tokens_per_second"]["runs"]
    assert rates == pytest.approx([32 / seconds for seconds in first], rel=0.05)
    assert results["prefill_4096"] == {"missing": "4097 tokens exceed max_model_len 256"}


def test_throughput_counts_output_over_the_whole_time(workload: Workload) -> None:
    settings = ThroughputSettings(num_prompts=5, input_len=12, output_len=6, repeat=2)
    results = measure_throughput(workload, settings)
    walls = results["seconds"]["runs"]
    output = results["output_tokens_per_second"]["runs"]
    assert walls == pytest.approx([30 / rate for rate in output], abs=0.0006)
    assert results["total_tokens_per_second"]["median"] == pytest.approx(
        results["output_tokens_per_second"]["median"] * 3, rel=0.01
    )
    assert results["steps_per_run"] >= 6


def test_summary_and_disturbance() -> None:
    assert summary([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "runs": [3, 1, 2]}
    assert not is_disturbed({"a": {"foreign": [0.01, 0.05]}})
    assert is_disturbed({"a": {"foreign": [0.01, 0.5]}})
    assert is_disturbed([{"foreign": 0.2}])


def test_the_meter_does_not_count_our_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own, clock = iter((10.0, 12.0)), iter((5.0, 6.5)), iter((100.0, 102.0))
    monkeypatch.setattr(measured_by, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(measured_by, "_own_seconds", lambda: next(own))
    monkeypatch.setattr(measured_by.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(measured_by.os, "cpu_count", lambda: 2)
    with Meter() as meter:
        pass
    assert (meter.seconds, meter.foreign) == (2.0, 0.125)


def test_the_meter_reads_this_machine() -> None:
    with Meter() as meter:
        time.sleep(0.05)
    assert meter.seconds >= 0.05
    assert 0.0 <= meter.foreign <= 1.0


def test_the_fingerprint_is_json_and_names_the_machine(tmp_path: Path) -> None:
    found = fingerprint()
    write(found, tmp_path / "deep" / "f.json")
    assert json.loads((tmp_path / "deep" / "f.json").read_text()) == found
    assert found["cpus"] >= 1
    assert found["isa_levels"][0] == "scalar"


@pytest.mark.parametrize("kind", ["read", "int8", "bf16", "fp32"])
def test_a_ceiling_is_a_rate_or_has_a_reason(kind: str) -> None:
    missing = _native.measure_missing(kind)
    rate = _native.measure(kind, 1, 1 << 20)
    assert rate == 0 if missing else rate > 0.1


@pytest.mark.parametrize(
    ("kind", "n_threads", "n_bytes"), [("int3", 1, 0), ("read", 0, 1 << 20), ("read", 2, 1 << 16)]
)
def test_a_wrong_measurement_is_refused(kind: str, n_threads: int, n_bytes: int) -> None:
    with pytest.raises(ValueError, match="measure"):
        _native.measure(kind, n_threads, n_bytes)


def test_bandwidth_is_that_of_the_size() -> None:
    ceilings = {f"read_{name}": {"median": float(i)} for i, name in enumerate(READ_SIZES)}
    assert bandwidth_for(ceilings, 40 << 20) == 1.0
    assert bandwidth_for(ceilings, 90 << 20) == 2.0
    assert bandwidth_for(ceilings, 100 << 20) == 2.0
    assert bandwidth_for(ceilings, 1) == 0.0
    assert bandwidth_for({"read_8MB": {"missing": "memory"}}, 1) is None


def test_ceilings_of_two_times_have_a_mean_and_a_change() -> None:
    before = {"int8": {"median": 100.0, "best": 110.0}, "bf16": {"missing": "this CPU has none"}}
    after = {"int8": {"median": 60.0, "best": 70.0}, "bf16": {"median": 8.0, "best": 9.0}}
    assert mean_ceilings(before, after) == {
        "int8": {"median": 80.0, "best": 110.0},
        "bf16": {"median": 8.0, "best": 9.0},
    }
    assert changed(before, after) == {"int8": pytest.approx(-0.4)}


def test_decode_reads_its_weights_once_a_token() -> None:
    results = {"decode": {"tokens_per_second": {"median": 100.0}}}
    ceilings = {"read_100MB": {"median": 50.0}}
    assert decode_read(results, 1e8, ceilings) == {"decode_read": {"GB/s": 10.0, "share": 0.2}}
    assert decode_read(results, 1e8, {}) == {}


def test_a_command_keeps_file_names_of_paths_that_lead_out() -> None:
    words = ["bench", "memory", "/models/a b.gguf", "../b.gguf", "--output=/tmp/x.json", "a=/b/c"]
    kept = "kvasir bench memory 'a b.gguf' b.gguf --output=x.json a=c"
    assert command_line("kvasir", words) == kept
    words = ["--url", "http://127.0.0.1:80/v1", "--no-numa", "bench/results/y.json", "~/z.gguf"]
    kept = "--url http://127.0.0.1:80/v1 --no-numa bench/results/y.json z.gguf"
    assert command_line("python -m bench.peers", words) == f"python -m bench.peers {kept}"


def test_a_result_does_not_say_whose_home_it_was_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/somebody")
    assert without_home("/users/somebody/.cache/packed: default") == "~/.cache/packed: default"


def test_what_is_measured_without_an_engine_is_planned_as_with_one() -> None:
    options = EngineOptions(threads=1, isa="scalar", max_model_len=10**6, model="m")
    planned = planned_executor(options)
    assert (planned.threads, planned.isa) == (1, "scalar")
    assert planned_executor(EngineOptions(cpu_affinity="0")).threads == 1
    with pytest.raises(ConfigError, match="isa 'z80' cannot run on this CPU"):
        planned_executor(EngineOptions(isa="z80"))


def test_a_start_gives_its_options_on() -> None:
    assert flags(EngineOptions(model="m")) == []
    chosen = EngineOptions(threads=1, kv_memory="1MiB", async_scheduling=False, dtype="float32")
    assert flags(chosen) == [
        *("--dtype", "float32", "--kv-memory", "1MiB"),
        *("--threads", "1", "--no-async-scheduling"),
    ]


def test_huge_pages_of_both_kinds_are_counted(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    text = "00400000-7ff000 ---p 0 00:00 0 [rollup]\nRss: 9 kB\nAnonHugePages: 2048 kB\n"
    (tmp_path / "7/smaps_rollup").write_text(text + "FilePmdMapped:  4096 kB\n")
    assert _huge_bytes(7, tmp_path) == 6144 << 10


def test_mapped_weights_are_told_from_other_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(range(256)) * 4096)
    before = memory_of(psutil.Process(), weight_files(path))
    mapped = np.memmap(path, np.uint8, "r")
    assert int(mapped.sum()) == 4096 * 255 * 128
    monkeypatch.chdir(tmp_path)
    after = memory_of(psutil.Process(), weight_files(Path("model.gguf")))
    assert before["weights"] == 0
    assert after["weights"] == 1 << 20
    assert after["resident"] >= after["weights"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [True, False])
def test_people_get_a_table_and_pipes_json(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    rate = {"median": 123.456, "min": 120.0, "max": 130.0, "runs": [120.0, 123.456, 130.0]}
    results = {"decode": {"tokens_per_second": rate, "foreign": [0.0]}, "read": {"missing": "x"}}
    write({"kind": "latency", "results": results, "disturbed": False}, None)
    if is_terminal:
        lines = [line.split() for line in out.getvalue().splitlines()]
        assert lines[0] == ["decode", "tokens", "per", "second", "123.5", "(120", "to", "130)"]
        assert lines[1] == ["read", "missing", "x"]
    else:
        assert json.loads(out.getvalue())["results"] == results
