"""The table of families: what it says of each, and that the tests run what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvasir.checkpoints import config_from
from kvasir.cli.features import CHECKS, FEATURES, features
from kvasir.cli.main import run_command
from kvasir.models.families import FAMILIES
from kvasir.weights.source import open_model
from tests import tiny
from tests.diff import test_media_exactness, test_state_exactness
from tests.diff.test_native_exactness import MODELS
from tests.oracle.cases import ENCODERS, GGUF_MODELS, GOLDEN_MODELS
from tests.oracle.real_files import FILES


def family_of(path: Path) -> str:
    return config_from(open_model(path)).family


def test_checks_are_those_of_the_tests(tmp_path: Path) -> None:
    golden = {**GOLDEN_MODELS, **ENCODERS}
    names = {
        name: family_of(tiny.write_hf(make(), tmp_path / name)) for name, make in golden.items()
    }
    assert set(names.values()) == CHECKS["logits"]
    assert {names[name] for name in (*GGUF_MODELS, *ENCODERS)} == CHECKS["file"]
    exact = set()
    for i, (write, _) in enumerate(MODELS.values()):
        folder = tmp_path / f"exact{i}"
        folder.mkdir()
        exact.add(family_of(write(folder)))
    for name, make in test_state_exactness.MODELS.items():
        exact.add(family_of(tiny.write_hf(make(), tmp_path / f"exact-{name}")))
    for name, seeing in test_media_exactness.MODELS.items():
        exact.add(family_of(tiny.write_hf(seeing.make(), tmp_path / f"exact-{name}")))
    assert exact == CHECKS["exact"]


def test_real_weights_are_those_that_were_compared() -> None:
    """Of encoders and of the default model by tests; of others once, whose results are kept."""
    path = Path(__file__).parents[2] / "bench/results/greedy-tokens.json"
    kept = json.loads(path.read_text())["results"] if path.exists() else {}
    assert all(found["differing"] == 0 for found in kept.values())
    always = {"bert", "nomic_bert", "llama"}  # tests/encoders, tests/oracle/test_smollm2.py
    assert always | {FILES[name].family for name in kept} == CHECKS["real"]


def test_every_family_has_goldens_of_its_logits() -> None:
    assert {family.name for family in FAMILIES} == CHECKS["logits"]


def test_every_feature_is_of_some_families_and_not_of_all() -> None:
    counts = {word: sum(word in features(family) for family in FAMILIES) for word in FEATURES}
    assert all(0 < n < len(FAMILIES) for n in counts.values()), counts


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", ["biases", "windows"]),
        ("gpt_oss", ["biases", "windows", "sinks", "experts"]),
        ("qwen2", ["biases", "windows"]),
        ("phi", ["layer norm", "biases", "parallel", "ungated", "partial rope"]),
    ],
)
def test_features(name: str, expected: list[str]) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    assert features(family) == expected


def test_it_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", "families"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["family", "GGUF", "logits", "file", "exact", "real", "has"]
    assert [row[0] for row in rows[1 : 1 + len(FAMILIES)]] == sorted(x.name for x in FAMILIES)
    assert ["mixtral", "llama", "yes", "yes", "yes", "-", "windows,", "experts"] in rows
