"""Towers of tiny models as llama.cpp's converter writes them: logits as of their folders.

KVASIR_CONVERTER names the folder of the converter (``make test-converter`` fetches it).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from kvasir.checkpoints import mmproj
from kvasir.core.tiles import MAX_TOKENS
from tests import tiny_internvl, tiny_pixtral, tiny_qwen_vl
from tests.tiny import TinyModel
from tests.unit.test_mmproj import KINDS, NEAR, answer, both

CONVERTER = os.environ.get("KVASIR_CONVERTER")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(not CONVERTER, reason="make test-converter"),
]
SCRIPT = Path(__file__).parent / "convert.py"


def as_intern(model: TinyModel) -> TinyModel:
    """As the converter wants it named."""
    vision = cast(dict[str, Any], model.config["vision_config"])
    vision = {**vision, "architectures": ["InternVisionModel"]}
    tensors = {
        f"model.{name}" if name.startswith(("vision_", "multi_modal_")) else name: x
        for name, x in model.tensors.items()
    }
    names = {"architectures": ["InternVisionModel"], "vision_config": vision}
    names |= {"max_dynamic_patch": tiny_internvl.MOST}
    return replace(model, config={**model.config, **names}, tensors=tensors)


RENAMED: dict[str, Callable[[TinyModel], TinyModel]] = {
    "internvl": as_intern,
    "internvl_large": as_intern,
}


PIXELS = {"size": {"shortest_edge": 56**2, "longest_edge": MAX_TOKENS * tiny_qwen_vl.UNIT**2}}
"""Of Qwen's images where a file says nothing, as the converter's does not."""
FAR = {"gemma3": 5e-4}
"""Of the largest logit: where a matrix is kept in half precision."""


@pytest.fixture(autouse=True)
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows as many matrices of connectors as towers have layers, and no size of windows."""
    monkeypatch.setattr(tiny_internvl, "DEPTH", 4)
    monkeypatch.setattr(tiny_pixtral, "DEPTH", 4)
    monkeypatch.setattr(tiny_qwen_vl, "OLDEST_DEPTH", 4)
    monkeypatch.setattr(mmproj, "LEAST_PIXELS", 56**2)
    windows = {**tiny_qwen_vl.OLDER_VISION, "window_size": 112}
    monkeypatch.setattr(tiny_qwen_vl, "OLDER_VISION", windows)


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_the_folder(name: str, tmp_path: Path) -> None:
    folder, file = both(name, tmp_path, PIXELS if name.startswith("qwen") else None)
    kind, tower = KINDS[name], file.parent / "mmproj.gguf"
    given = folder
    if name in RENAMED:
        given = kind.write(RENAMED[name](kind.make()), tmp_path / "renamed")
    tower.unlink()
    command = [sys.executable, str(SCRIPT), "--mmproj", str(CONVERTER), str(given), str(tower)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    refused = Path(f"{tower}.error")
    assert not refused.exists(), refused.read_text("utf-8")
    (ids, expected), (own, found) = (answer(x, kind.image) for x in (folder, file))
    assert own == ids
    assert np.abs(found - expected).max() <= FAR.get(name, NEAR) * np.abs(expected).max()
