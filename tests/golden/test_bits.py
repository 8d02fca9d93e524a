"""Arithmetic, sampler and packing have versions, and those change whenever the bits do."""

from __future__ import annotations

import json

import pytest

from kvasir import _native
from kvasir.core.params import DRAWS
from kvasir.exec.backend import ARITHMETIC
from tests.golden.bits import FILE, draws, linears, logits, packed
from tests.native import BEST

KNOWN = json.loads(FILE.read_text())


@pytest.mark.parametrize("level", ["scalar", BEST])
def test_other_bits_are_another_arithmetic(level: str) -> None:
    assert KNOWN["arithmetic"] == ARITHMETIC, "run python -m tests.golden.bits"
    found = {"logits": logits(level), "linears": linears(level)}
    expected = {name: KNOWN[name] for name in found}
    assert found == expected, "raise kvasir.exec.backend.ARITHMETIC, then write anew"


def test_other_draws_are_another_sampler() -> None:
    assert KNOWN["sampler"] == DRAWS, "run python -m tests.golden.bits"
    assert draws() == KNOWN["draws"], "raise kvasir.core.params.DRAWS, then write anew"


def test_other_packed_bytes_are_another_layout_version() -> None:
    assert KNOWN["layout"] == _native.LAYOUT_VERSION, "run python -m tests.golden.bits"
    assert packed() == KNOWN["packed"], "raise kLayoutVersion, then write anew"
