"""The printed programs of the families are what they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.programs import HERE, TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_program_text(name: str, tmp_path: Path) -> None:
    assert TEXTS[name](tmp_path).splitlines() == (HERE / name).read_text().splitlines()
