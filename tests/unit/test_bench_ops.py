"""``kvasir bench ops``: what it counts, and its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvasir.bench.ops import FORMATS, OpsSettings, Profile, cpu_settings, markdown, measure_ops
from kvasir.bench.synthetic import FFN, HIDDEN, synthetic_executor, synthetic_program
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.core.params import TokenParams
from kvasir.core.plan import SlotOpen
from kvasir.exec.cpu.executor import CpuSettings
from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT
from tests.planned import placed, step_plan

CPU = CpuSettings(threads=1, isa=cpu_settings(EngineOptions()).isa)


def test_the_work_of_a_step_is_that_of_its_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.bench.synthetic.MAX_LAYERS", 1)
    program, binding = synthetic_program("Q4_0", 16)
    profile = Profile(synthetic_executor(program, binding, 4, 16, CPU), program)
    opens = (SlotOpen(0, TokenParams(seed=0, max_tokens=1, temperature=0.0), (1,)),)
    plan = step_plan(0, (placed(0, 0, (1, 2, 3), ((0,),)),), opens)
    work = profile.measure(plan, repeat=1)
    n_elements = HIDDEN * (2 * HIDDEN + 2 * 512 + 3 * FFN)
    assert work["linear"].flops == pytest.approx(2 * 3 * n_elements, rel=1e-3)
    assert work["linear"].bytes > n_elements * 4.5 / 8
    assert all(np.isfinite(item.seconds) and item.seconds > 0 for item in work.values())


def test_the_table_has_a_cell_for_every_format_and_row_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvasir.bench.synthetic.MAX_LAYERS", 1)
    monkeypatch.setattr("kvasir.bench.ops.measure_ceilings", _ceilings)
    settings = OpsSettings(("Q4_0",), rows=(1, 2), contexts=(8,), kv_dtypes=("bf16",), repeat=1)
    found = measure_ops(settings, CPU)
    assert [(row["format"], row["rows"]) for row in found["results"]["linear"]] == [
        ("Q4_0", 1),
        ("Q4_0", 2),
    ]
    machine = {"cpu": "c", "cpu_family": "f", "time": "t", "commit": "0"}
    engine = {"threads": 1, "isa": CPU.isa}
    text = markdown(found | {"engine": engine, "machine": machine})
    assert "| linear, by rows | 1 | 2 |" in text
    assert "| decode attention, by context | 8 |" in text
    assert "Not steady" not in text
    assert text.count("% of memory") + text.count("% of arithmetic") == 3


def test_the_table_says_when_the_ceilings_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter((1.0, 0.8))

    def measure(n_threads: int) -> dict[str, dict[str, Any]]:
        factor = next(taken)
        return {"int8": {"median": 500.0 * factor, "best": 500.0 * factor}} | {
            name: entry for name, entry in _ceilings(n_threads).items() if name != "int8"
        }

    monkeypatch.setattr("kvasir.bench.ops.measure_ceilings", measure)
    found = measure_ops(OpsSettings((), contexts=(), kv_dtypes=()), CPU)
    assert found["ceilings"]["int8"]["median"] == 450.0
    assert found["ceilings_after"]["int8"]["median"] == 400.0
    machine = {"cpu": "c", "cpu_family": "f", "time": "t", "commit": "0"}
    text = markdown(found | {"engine": {"threads": 1, "isa": "scalar"}, "machine": machine})
    assert "**Not steady: from before to after, ceilings changed: int8 -20%.**" in text


def test_every_layout_is_measured_once() -> None:
    layouts = [LAYOUT_OF_FORMAT[name] for name in FORMATS]
    assert len(set(layouts)) == len(layouts)
    assert set(layouts) == set(LAYOUT_OF_FORMAT.values())
    assert "F32" in FORMATS


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no format Q9: use one of Q4_0"):
        measure_ops(OpsSettings(("Q9",)), CPU)


def _ceilings(n_threads: int) -> dict[str, dict[str, Any]]:
    rates = {"read_8MB": 50.0, "int8": 500.0, "bf16": 200.0, "fp32": 100.0}
    return {name: {"median": rate, "best": rate} for name, rate in rates.items()}
