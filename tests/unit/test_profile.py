"""What bounds a model, and where more requests stop paying."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvasir.bench.profile import LoadPoint, ModelProfile, PhaseProfile, knee, operating_point
from kvasir.cli.main import run_command
from kvasir.cli.profile_text import profile_text
from tests import tiny
from tests.tiny import write_gguf_model

POINTS = tuple(
    LoadPoint(n, rate, n / rate)
    for n, rate in ((1, 100.0), (2, 190.0), (4, 340.0), (8, 420.0), (16, 440.0), (32, 445.0))
)


def test_where_the_curve_turns() -> None:
    assert knee(POINTS).n == 8
    assert operating_point(POINTS).n == 4
    assert knee(POINTS[:1]).n == operating_point(POINTS[:1]).n == 1


@pytest.mark.parametrize(
    ("memory", "compute", "bound"),
    [(0.9, 0.1, "memory"), (0.3, 0.8, "compute"), (0.2, 0.3, "neither"), (None, 0.6, "compute")],
)
def test_what_bounds(memory: float | None, compute: float | None, bound: str) -> None:
    assert PhaseProfile("decode", 1.0, memory, compute).bound == bound


def test_the_words() -> None:
    phases = (
        PhaseProfile("decode", 120.0, 0.85, 0.02),
        PhaseProfile("prefill of 512", 900.0, 0.1, 0.7),
    )
    text = profile_text(ModelProfile("m", "int8", {}, phases, POINTS))
    assert "decode: fewer bytes help" in text and "prefill of 512: more cores help" in text
    assert "knee" in text and "75 % of the most" in text and "repeat it" not in text
    assert "kernels: " not in text
    told = ModelProfile("m", "int8", {}, phases, kernels="usual everywhere")
    assert "kernels: usual everywhere; kvasir tune" in profile_text(told)
    assert "took 30% of the machine" in profile_text(ModelProfile("m", "int8", {}, phases, (), 0.3))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0")
    words = ["--json", "--load", "--max-num-seqs", "4", "--threads", "1", "--packed-cache", "off"]
    assert run_command(["profile", str(path), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["phases"]][:2] == ["decode", "batch of 4"]
    assert all(each["tokens_per_second"] > 0 for each in found["phases"])
    assert "measured" in found["kernels"]
    assert [point[0] for point in found["load"]] == [1, 2, 4]
