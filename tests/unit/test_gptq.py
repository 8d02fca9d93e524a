"""GPTQ: codes are those of the textbook, what a calibration reads is what linears read, and outputs
of a model come nearer than by rounding to the nearest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.cli.main import run_command
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError, ModelError
from kvasir.evaluation import calibrate
from kvasir.evaluation.calibrate import Calibration
from kvasir.formats.decode import values_of
from kvasir.quantize.choose import choose
from kvasir.quantize.gptq import corrected_codes, factor_of
from kvasir.quantize.groups import Groups
from kvasir.quantize.methods import method_named
from kvasir.quantize.quantize import quantize
from kvasir.weights.source import open_model
from tests import tiny
from tests.quantized_kinds import llama

Floats = NDArray[np.float32]
GPTQ = method_named("gptq", 4, 32, None)


def opened(model: LoadedModel) -> Calibration:
    tensors = choose(model, with_head=False).quantized
    return Calibration(model, tensors, EngineOptions(threads=1), "self", 2)


def textbook(w: Floats, gram: Floats, method: Groups) -> NDArray[np.float64]:
    """Codes of one row, in float64: each input in turn, the inverse made anew for those left."""
    grid = method.grid(w[None])
    full = gram.astype(np.float64) + 0.01 * np.diagonal(gram).mean() * np.eye(len(w))
    left, codes = w.astype(np.float64), np.zeros(len(w))
    order = list(np.argsort(-np.diagonal(gram), kind="stable"))
    while order:
        inverse = np.linalg.inv(full[np.ix_(order, order)])
        j = order[0]
        scale, zero = grid.scales[0, j // method.group], grid.zeros[0, j // method.group]
        codes[j] = np.clip(np.rint(left[j] / scale) + zero, 0, method.top)
        error = (left[j] - (codes[j] - zero) * scale) / inverse[0, 0]
        left[order] -= error * inverse[0]
        order = order[1:]
    return codes


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_codes_are_the_textbooks(is_symmetric: bool) -> None:
    rng = np.random.default_rng(5)
    method = Groups(4, 32, is_symmetric)
    w = rng.standard_normal((3, 192), np.float32)
    x = rng.standard_normal((400, 192), np.float32) @ rng.standard_normal((192, 192), np.float32)
    gram = x.T @ x
    packed = corrected_codes(w, factor_of(gram), method)
    expected = np.stack([textbook(row, gram, method) for row in w])
    words = np.frombuffer(packed[0], "<u4").reshape(3, -1)
    found = (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(3, -1)
    assert (found == expected).mean() > 0.99  # a tie may fall otherwise in float32
    assert packed[0] != method.encode(w)[0] and packed[1] == method.encode(w)[1]


def test_what_is_read_is_what_linears_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first layer; and passes of one product each find what one pass finds."""
    model = load_model(str(tiny.write_hf(llama(), tmp_path / "origin")))
    calibration = opened(model)
    names = choose(model, with_head=False).quantized
    inputs = {x: calibration.inputs(x) for x in names}
    layer = "model.layers.0.self_attn."
    of_q = inputs[f"{layer}q_proj.weight"]
    assert of_q is not None and of_q is inputs[f"{layer}v_proj.weight"]
    tensors = {x: values_of(model.source.tensors[x]) for x in model.source.tensors}
    x = tensors["model.embed_tokens.weight"][np.concatenate(calibration.chunks)]
    root = np.sqrt(np.square(x, dtype=np.float64).mean(axis=1, keepdims=True) + 1e-5)
    rows = x / root * tensors["model.layers.0.input_layernorm.weight"]
    assert of_q.n == len(rows) and 128 < len(of_q.sample) <= 256
    for found, expected in (
        (of_q.gram, rows.T @ rows),
        (of_q.mean, np.abs(rows).mean(axis=0)),
        (of_q.peak, np.abs(rows).max(axis=0)),
        (of_q.sample, rows[:: -(-len(rows) // 256)]),
    ):
        assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()
    monkeypatch.setattr(calibrate, "_BUDGET", 1)
    again = opened(model)
    for name in names:
        one, other = again.inputs(name), inputs[name]
        assert one is not None and other is not None
        assert all(map(np.array_equal, one, other)), name
    assert again.digest == calibration.digest


def test_outputs_come_nearer(tmp_path: Path) -> None:
    """Of every linear on what it read; and the same bytes again."""
    origin = str(tiny.write_hf(llama(), tmp_path / "origin"))

    def calibrated(
        model: LoadedModel, tensors: Sequence[str], kept: Path | None = None
    ) -> Calibration:
        return Calibration(model, tensors, EngineOptions(threads=1), "self", 2)

    made = quantize(origin, GPTQ, tmp_path / "gptq", calibrate=calibrated)
    assert made.n_quantized == 21 and not made.rounded and "by GPTQ" in made.method
    quantize(origin, method_named("rtn", 4, 32, None), tmp_path / "rtn")
    model = load_model(origin)
    calibration, folders = opened(model), [open_model(tmp_path / x) for x in ("gptq", "rtn")]
    ratios = []
    for name in choose(model, with_head=False).quantized:
        inputs, w = calibration.inputs(name), values_of(model.source.tensors[name])
        assert inputs is not None
        errors = [values_of(x.tensors[name]) - w for x in folders]
        one, other = (float(np.einsum("nk,kj,nj->", e, inputs.gram, e)) for e in errors)
        ratios.append(one / other)
    assert max(ratios) < 1 and np.mean(ratios) < 0.8, ratios
    quantize(origin, GPTQ, tmp_path / "again", calibrate=calibrated)
    written = [(tmp_path / x / "model.safetensors").read_bytes() for x in ("gptq", "again")]
    assert written[0] == written[1] and b"quantize.calibration" in written[0][:4096]


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = str(tiny.write_hf(llama(), tmp_path / "origin"))
    with pytest.raises(ConfigError, match="give --calibration FILE or self"):
        quantize(origin, GPTQ, tmp_path / "made")
    with pytest.raises(ModelError, match="not finite"):
        factor_of(np.full((32, 32), np.nan, np.float32))
    words = ["quantize", origin, "--output", str(tmp_path / "made"), "--group-size", "32"]
    assert run_command([*words, "--method", "rtn", "--calibration", "self"]) == 2
    assert "--calibration is an option of gptq" in capsys.readouterr().err
    assert run_command([*words, "--method", "gptq", "--calibration", "no.txt"]) == 2
    assert "no.txt is no file" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
    (tmp_path / "short.txt").write_text("hello")
    words += ["--method", "gptq", "--calibration"]
    assert run_command([*words, str(tmp_path / "short.txt")]) == 2
    said = capsys.readouterr().err
    assert f"--calibration {tmp_path}" in said and "a smaller --calibration-chunks" in said


def test_products_that_nothing_inverts_are_refused() -> None:
    with pytest.raises(ModelError, match=r"8 inputs of a linear .* --calibration, or --method rtn"):
        factor_of(-np.eye(8, dtype=np.float32))


def test_nothing_is_left_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights of the origin would take the room of what is served."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_key_value_heads": 8}
    heads = {"num_attention_heads": 8, "head_dim": 64, "num_hidden_layers": 1}
    model = load_model(str(tiny.write_hf(tiny.llama(**sizes, **heads), tmp_path / "origin")))
    text = tmp_path / "text"  # of a token each letter, or so
    text.write_text("the lazy dog " * 200)
    Calibration(model, (), EngineOptions(threads=1), str(text), 2).close()
    assert not list((tmp_path / "cache").rglob("*.packed"))


def test_a_model_with_little_room_reads_shorter_chunks(tmp_path: Path) -> None:
    origin = tiny.write_hf(tiny.llama(max_position_embeddings=64), tmp_path / "origin")
    calibration = opened(load_model(str(origin)))
    assert {len(chunk) for chunk in calibration.chunks} == {64}
    assert calibration.inputs("model.layers.0.mlp.down_proj.weight") is not None
    calibration.close()
