"""GGUF's newest types: NVFP4 with its factor beside it, Q1_0 and Q2_0, element by element."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvasir.core.errors import ModelError
from kvasir.formats.decode import values_of
from kvasir.weights.source import open_model
from tests import tiny
from tests.gguf_writer import ENCODERS, write_gguf
from tests.loading import load, reference_logits
from tests.native import native_logits
from tests.quantized_floats import E2M1, E4M3

PROMPT = tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(12))
ROWS, K = 6, 256
TYPES = {"NVFP4": (40, 64, 36), "Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18)}


def random_data(name: str, n: int) -> bytes:
    _, block, n_bytes = TYPES[name]
    rows = np.random.default_rng(n).integers(0, 256, (n // block, n_bytes), np.uint8)
    if name == "NVFP4":
        rows[:, :4] = rows[:, :4] % 48 + 16
    else:
        rows[:, :2] = np.linspace(0.01, 0.02, len(rows)).astype("<f2").view(np.uint8).reshape(-1, 2)
    return rows.tobytes()


def expected(name: str, data: bytes, factor: float = 1.0) -> np.ndarray:
    """By the definition of each element."""
    _, block, n_bytes = TYPES[name]
    found = []
    for row in np.frombuffer(data, np.uint8).reshape(-1, n_bytes):
        d = row[:2].view("<f2")[0].astype(np.float32)
        for j in range(block):
            if name == "Q1_0":
                found.append(d if row[2 + j // 8] >> j % 8 & 1 else -d)
            elif name == "Q2_0":
                found.append(d * np.float32(int(row[2 + j // 4] >> 2 * (j % 4) & 3) - 1))
            else:
                byte = row[4 + j // 16 * 8 + j % 8]
                code = byte >> 4 if j % 16 >= 8 else byte & 15
                found.append(E4M3[row[j // 16]] * np.float32(factor) * E2M1[code])
    return np.array(found, np.float32)


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (kind, _, _) in TYPES.items():
        monkeypatch.setitem(ENCODERS, name, (kind, lambda x, name=name: random_data(name, x.size)))


@pytest.mark.usefixtures("writers")
@pytest.mark.parametrize("name", TYPES)
def test_elements(name: str, tmp_path: Path) -> None:
    zeros, scale = np.zeros((ROWS, K), np.float32), np.array([0.3], np.float32)
    tensors = {"w.weight": (name, zeros), "w.scale": ("F32", scale), "x.weight": (name, zeros)}
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, tensors)
    found = open_model(tmp_path / "m.gguf").tensors
    assert ("w.scale" in found) == (name != "NVFP4")
    for tensor, factor in (("w.weight", 0.3), ("x.weight", 1.0)):
        values = expected(name, random_data(name, ROWS * K), factor).reshape(ROWS, K)
        assert found[tensor].shape == (ROWS, K)
        assert np.array_equal(values_of(found[tensor]), values)


@pytest.mark.usefixtures("writers")
@pytest.mark.parametrize("name", TYPES)
def test_native_equals_reference(name: str, tmp_path: Path) -> None:
    model = tiny.llama(hidden_size=128, intermediate_size=256, head_dim=32)
    metadata, tensors = tiny.gguf_parts(model, "F32")
    matrices = {
        x: (name if x.startswith("blk") and y.ndim == 2 else form, y)
        for x, (form, y) in tensors.items()
    }
    write_gguf(tmp_path / "m.gguf", metadata, matrices)
    loaded = load(tmp_path / "m.gguf", "auto")
    wanted = reference_logits(loaded, PROMPT)
    error = np.abs(native_logits(loaded, PROMPT) - wanted).max() / np.abs(wanted).max()
    assert error <= 0.05


@pytest.mark.usefixtures("writers")
def test_a_factor_that_does_not_fit(tmp_path: Path) -> None:
    zeros, scale = np.zeros((ROWS, K), np.float32), np.ones(3, np.float32)
    tensors = {"w.weight": ("NVFP4", zeros), "w.scale": ("F32", scale)}
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, tensors)
    with pytest.raises(ModelError, match=r"'w.scale' is F32 of shape \[3\], expected 1 numbers"):
        open_model(tmp_path / "m.gguf")
