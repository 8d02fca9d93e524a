"""The ops of real steps: their time, their work, and where both are written to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvasir.bench.op_times import OpTime, PhaseTime, StepTimes, chrome_trace
from kvasir.bench.profile import ModelProfile, PhaseProfile
from kvasir.cli.main import run_command
from kvasir.cli.profile_text import profile_text, profile_trace
from kvasir.core.errors import ConfigError
from tests import tiny
from tests.tiny import write_gguf_model

PHASES = (
    PhaseTime("norm", 1e-6, 300.0, 100.0, None),
    PhaseTime("linear q8 64x32", 9e-6, 2e3, 4e3, "int8"),
)
STEP = StepTimes(
    3,
    1,
    PHASES,
    (OpTime("linear q8 64x32", 1, 9e-6, 0.9, 2e3, 4e3, 0.5, 0.25),),
)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, trace = write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0"), tmp_path / "t.json"
    words = ["--rows", "3", "--context", "40", "--trace", str(trace), "--packed-cache", "off"]
    words += ["--threads", "1", "--max-num-seqs", "4"]
    assert run_command(["profile", str(path), "--json", *words]) == 0
    phases = json.loads(capsys.readouterr().out)["phases"]
    assert [each["name"] for each in phases][:2] == ["decode", "batch of 3"]
    for each, n_tokens in zip(phases[:2], (1, 3), strict=True):
        step = each["step"]
        assert step["n_tokens"] == n_tokens and step["n_steps"] >= 60
        ops = {op["name"]: op for op in step["ops"]}
        assert {"attention", "rope_write", "sample"} <= ops.keys()
        assert any(name.startswith("lm_head q8") for name in ops)
        assert sum(op["share"] for op in ops.values()) == pytest.approx(1, abs=0.01)
        assert sum(op["count"] for op in ops.values()) == len(step["phases"])
        assert all(op["seconds"] > 0 and op["bytes"] > 0 for op in ops.values())
        heads = [op for name, op in ops.items() if name.startswith("lm_head")]
        assert heads[0]["flops"] > 0 and heads[0]["compute"] is not None
    events = json.loads(trace.read_bytes())["traceEvents"]
    lines = {event["tid"] for event in events}
    assert lines == {0, 1, 2}
    for line in lines:
        spans = [event for event in events if event["tid"] == line and event["ph"] == "X"]
        ends = [span["ts"] + span["dur"] for span in spans]
        assert [span["ts"] for span in spans[1:]] == pytest.approx(ends[:-1], abs=0.01)


def test_the_words() -> None:
    found = ModelProfile("m", "int8", {}, (PhaseProfile("decode", 9.0, 0.6, 0.1, STEP),))
    text = profile_text(found, with_ops=True)
    assert "decode: 9 us a step, median of 3" in text
    assert "linear q8 64x32         1      9.0   90%" in text
    assert "us a step" not in profile_text(found)


def test_a_trace_needs_times() -> None:
    assert (
        len(
            json.loads(
                profile_trace(
                    ModelProfile("m", "int8", {}, (PhaseProfile("decode", 9.0, 0.6, 0.1, STEP),))
                )
            )["traceEvents"]
        )
        == 3
    )
    with pytest.raises(ConfigError, match="does not time"):
        profile_trace(ModelProfile("m", "int8", {}, (PhaseProfile("decode", 9.0, 0.6, 0.1),)))
    event = chrome_trace({"decode": STEP})["traceEvents"]
    assert isinstance(event, list)
    assert event[2]["args"] == {"bytes": 2e3, "operations": 4e3}
