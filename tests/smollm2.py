"""The default model for tests that need a real one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kvasir.core.errors import ModelError
from kvasir.weights.default import default_model


@cache
def _found() -> Path | str:
    try:
        return default_model()
    except ModelError as error:
        return error.message


def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct; skips the test when it cannot be had."""
    found = _found()
    if isinstance(found, str):
        pytest.skip(found)
    return found
