"""The arithmetic has a version, and it changes whenever the bits do."""

from __future__ import annotations

import json

import pytest

from kvasir.engine.keys import ARITHMETIC
from tests.golden.bits import FILE, digests
from tests.native import BEST


@pytest.mark.parametrize("level", ["scalar", BEST])
def test_other_bits_are_another_arithmetic(level: str) -> None:
    known = json.loads(FILE.read_text())
    assert known["arithmetic"] == ARITHMETIC, "run python -m tests.golden.bits"
    assert digests(level) == known["logits"], "raise kvasir.engine.keys.ARITHMETIC, then write anew"
