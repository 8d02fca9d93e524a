"""AWQ and SmoothQuant: scales that nothing is changed by, chosen so that rounding changes less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir.bench import advise
from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.checkpoints.tensors import build_program
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.evaluation import judge
from kvasir.evaluation.calibrate import Calibration, calibrated_by
from kvasir.formats.decode import values_of
from kvasir.quantize.choose import choose
from kvasir.quantize.folds import Fold, folds_of
from kvasir.quantize.methods import method_named
from kvasir.quantize.quantize import quantize
from kvasir.quantize.scaled import Scaled
from kvasir.quantize.scaling import AwqGroups, SmoothInt8, chosen
from kvasir.quantize.statistics import Inputs
from kvasir.weights.source import open_model
from tests import tiny
from tests.loading import load, reference_logits
from tests.quantized_kinds import llama
from tests.tiny_encoders import gemma_embedding
from tests.tiny_gemma3n import gemma3n
from tests.tiny_layer_norms import starcoder2
from tests.tiny_moe import gpt_oss
from tests.tiny_rope import phi3
from tests.tiny_scan import qwen3_next

Floats = NDArray[np.float32]
PROMPT = tuple((17 * i * i + 5 * i + 3) % tiny.VOCAB for i in range(12))


def calibrated(model: LoadedModel, tensors: Sequence[str], kept: Path | None = None) -> Calibration:
    return Calibration(model, tensors, EngineOptions(threads=1), "self", 2)


def folds(model: tiny.TinyModel, folder: Path) -> tuple[LoadedModel, tuple[Fold, ...]]:
    loaded = load_model(str(tiny.write_hf(model, folder)))
    names = choose(loaded, with_head=False).quantized
    return loaded, folds_of(build_program(loaded.config), names)


def uneven(model: tiny.TinyModel) -> tiny.TinyModel:
    """Inputs of very different sizes, which is what scales are for."""
    rng = np.random.default_rng(3)
    tensors = {
        name: w * np.exp(rng.standard_normal(w.shape, np.float32)) if "layernorm" in name else w
        for name, w in model.tensors.items()
    }
    return replace(model, tensors=tensors)


def moved(model: tiny.TinyModel, found: Sequence[Fold]) -> tiny.TinyModel:
    """With all folds by scales of chance."""
    rng, tensors = np.random.default_rng(4), dict(model.tensors)
    for fold in found:
        s = np.exp(rng.standard_normal(tensors[fold.readers[0]].shape[1], np.float32))
        given = s
        if fold.heads:
            n, size = fold.heads
            given = s.reshape(-1, n, size)[:, 0].reshape(-1)
            s = np.repeat(given.reshape(-1, 1, size), n, axis=1).reshape(-1)
        for name in fold.readers:
            tensors[name] = tensors[name] * s
        for i, name in enumerate(fold.givers):
            w, offset = tensors[name], np.float32(fold.offset if i == 0 else 0)
            divisor = given if w.ndim == 1 else given[:, None]
            tensors[name] = (w + offset) / divisor - offset
    return replace(model, tensors=tensors)


@pytest.mark.parametrize(
    "model", [llama(), tiny.qwen2(), tiny.gemma3()], ids=["llama", "qwen2", "gemma3"]
)
def test_folds_change_nothing(model: tiny.TinyModel, tmp_path: Path) -> None:
    loaded, found = folds(model, tmp_path / "origin")
    n_layers = len(loaded.config.layers)
    assert len(found) == 4 * n_layers, found
    tiny.write_hf(moved(model, found), tmp_path / "moved")
    logits, others = (reference_logits(load(tmp_path / x), PROMPT) for x in ("origin", "moved"))
    assert np.abs(logits - others).max() <= 1e-3 * np.abs(logits).max()


@pytest.mark.parametrize(
    "make, n",
    [(phi3, 0), (gpt_oss, 8), (gemma3n, 9), (starcoder2, 9)],
    ids=["fused", "experts", "norms-of-values", "biases"],
)
def test_what_cannot_be_scaled_stays(
    make: Callable[[], tiny.TinyModel], n: int, tmp_path: Path
) -> None:
    _, found = folds(model := make(), tmp_path / "origin")
    assert len(found) == n, found
    tiny.write_hf(moved(model, found), tmp_path / "moved")
    logits, others = (reference_logits(load(tmp_path / x), PROMPT) for x in ("origin", "moved"))
    assert np.abs(logits - others).max() <= 1e-5 * np.abs(logits).max()


def test_columns_take_what_norms_give(tmp_path: Path) -> None:
    """To the last bit of f32, however the norm's type rounds."""
    origin = load_model(str(tiny.write_hf(uneven(tiny.gemma3()), tmp_path / "origin", "BF16")))
    names, tensors = choose(origin, with_head=False).quantized, origin.source.tensors
    found = folds_of(build_program(origin.config), names)
    listed = {x.name: x for x in tensors.listing()}
    scaled = Scaled(AwqGroups(4, 32, True), listed, names, found, lambda x: calibrated(origin, x))
    n = 0
    for fold in (x for x in found if x.is_norm):
        norm, columns = scaled.norm(fold.givers[0]), scaled.columns(fold.readers[0])
        assert norm is not None and columns is not None
        before = values_of(tensors[fold.givers[0]]) + np.float32(fold.offset)
        assert (norm + np.float32(fold.offset)) * columns == pytest.approx(before, rel=1e-6)
        n += int(not np.array_equal(columns, np.ones_like(columns)))
    assert n > 2


def test_inputs_of_experts_and_routers_stay(tmp_path: Path) -> None:
    """A router reads what experts read, and a gate stands between attention and o."""
    _, found = folds(tiny.mixtral(), tmp_path / "mixtral")
    assert found and all("self_attn" in x for fold in found for x in fold.readers)
    assert len(folds(qwen3_next(), tmp_path / "next")[1]) < 4 * 4


def read(k: int, rng: np.random.Generator) -> Inputs:
    x = rng.standard_normal((300, k), np.float32) * np.exp(rng.standard_normal(k, np.float32) * 2)
    sizes = np.abs(x)
    squares = np.square(x).mean(axis=0)
    mean, peak = sizes.mean(axis=0), sizes.max(axis=0)
    return Inputs(x.T @ x, squares, mean, peak, x[::3], len(x))


@pytest.mark.parametrize("method", [AwqGroups(4, 32, True), SmoothInt8()], ids=["awq", "smooth"])
def test_the_least_loss_is_chosen(method: AwqGroups | SmoothInt8) -> None:
    rng = np.random.default_rng(7)
    inputs, matrices = read(64, rng), [rng.standard_normal((24, 64), np.float32) for _ in range(2)]

    def loss(scales: Floats) -> float:
        """Of the outputs themselves; inputs of a sample are rounded, too, where they are int8."""
        return sum(method.loss(inputs, w, scales) for w in matrices)

    found = chosen(method, inputs, matrices, None)
    ones = np.ones(64, np.float32)
    assert loss(found) < 0.8 * loss(ones)
    assert found.max() * found.min() == pytest.approx(1, rel=1e-3)
    tied = chosen(method, inputs, matrices, (2, 16)).reshape(2, 2, 16)
    assert np.array_equal(tied[:, 0], tied[:, 1]) and loss(tied.reshape(-1)) <= loss(ones)
    alike = inputs._replace(
        gram=np.zeros((64, 64), np.float32), sample=np.zeros_like(inputs.sample)
    )
    assert np.array_equal(chosen(method, alike, matrices, None), ones)


def test_the_loss_is_that_of_the_outputs() -> None:
    rng = np.random.default_rng(8)
    inputs, w = read(64, rng), rng.standard_normal((24, 64), np.float32)
    whole = inputs._replace(gram=inputs.sample.T @ inputs.sample, n=len(inputs.sample))
    scales = np.exp(rng.standard_normal(64, np.float32))
    awq, smooth = AwqGroups(4, 32, False), SmoothInt8()
    x = whole.sample.astype(np.float64)
    outputs = x @ (awq.restored(w * scales) / scales - w).astype(np.float64).T
    assert awq.loss(whole, w, scales) == pytest.approx(np.square(outputs).sum(), rel=1e-3)
    steps = np.abs(x / scales).max(axis=1, keepdims=True) * 2 / 255
    codes = np.rint(x / scales / steps).clip(-128, 127)
    outputs = (codes * steps) @ smooth.restored(w * scales).astype(np.float64).T - x @ w.T
    assert smooth.loss(whole, w, scales) == pytest.approx(np.square(outputs).sum(), rel=0.1)


def restored(folder: Path, matrix: str, norm: str, before: Floats) -> Floats:
    """A matrix as it acts behind its norm as it was."""
    tensors = open_model(folder).tensors
    return np.asarray(values_of(tensors[matrix]) * (values_of(tensors[norm]) / before))


def test_outputs_come_nearer_by_awq(tmp_path: Path) -> None:
    """Of what a norm gives; norms hold what columns were multiplied by, as BF16 has it; and the
    same bytes again."""
    origin = str(tiny.write_hf(uneven(llama()), tmp_path / "origin", "BF16"))
    awq, rtn = (method_named(x, 4, 32, None) for x in ("awq", "rtn"))
    made = quantize(origin, awq, tmp_path / "awq", calibrate=calibrated)
    assert made.n_quantized == 21 and not made.rounded
    quantize(origin, rtn, tmp_path / "rtn")
    model, ratios = load_model(origin), []
    names = [
        f"model.layers.{i}.{x}_proj.weight" for i in range(3) for x in ("self_attn.q", "mlp.gate")
    ]
    calibration = calibrated(model, names)
    for name in names:
        part = "input" if "attn" in name else "post_attention"
        norm = f"{name.rsplit('.', 3)[0]}.{part}_layernorm.weight"
        before, w = (values_of(model.source.tensors[x]) for x in (norm, name))
        inputs = calibration.inputs(name)
        assert inputs is not None
        errors = [restored(tmp_path / x, name, norm, before) - w for x in ("awq", "rtn")]
        one, other = (float(np.einsum("nk,kj,nj->", e, inputs.gram, e)) for e in errors)
        ratios.append(one / other)
    assert max(ratios) < 1.05 and np.mean(ratios) < 0.97, ratios
    assert open_model(tmp_path / "awq").tensors[norm].format == "BF16"
    quantize(origin, awq, tmp_path / "again", calibrate=calibrated)
    written = [(tmp_path / x / "model.safetensors").read_bytes() for x in ("awq", "again")]
    assert written[0] == written[1] and b"quantize.calibration" in written[0][:4096]


def test_smoothed_models_say_the_same(tmp_path: Path) -> None:
    origin = str(tiny.write_hf(llama(), tmp_path / "origin"))
    how = method_named("smoothquant", None, None, None)
    quantize(origin, how, tmp_path / "made", calibrate=calibrated)
    expected, found = (reference_logits(load(tmp_path / x), PROMPT) for x in ("origin", "made"))
    assert 0 < np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()
    norm = "model.layers.0.input_layernorm.weight"
    before, after = (values_of(open_model(tmp_path / x).tensors[norm]) for x in ("origin", "made"))
    assert (before / after).std() > 0.05


def test_texts_that_methods_choose_by_judge_none(tmp_path: Path) -> None:
    """The model's own are others than those of evaluate's seeds, and of ``--require``."""
    origin = str(tiny.write_hf(llama(), tmp_path / "origin"))
    model = load_model(origin)
    chosen_by = calibrated(model, choose(model, with_head=False).quantized)
    n = len(chosen_by.chunks[0])
    for seed in (0, advise.SEED, judge._SEED):
        written = [chosen_by._reader.write(chosen_by.chunks[0][0], n, seed + i) for i in range(3)]
        assert not any(x in chosen_by.chunks for x in written)


def test_models_of_vectors_write_no_text(tmp_path: Path) -> None:
    origin = str(tiny.write_hf(gemma_embedding(), tmp_path / "origin"))
    with pytest.raises(ConfigError, match="makes vectors and writes no text"):
        quantize(origin, SmoothInt8(), tmp_path / "made", calibrate=calibrated)
    chunks = [list(np.random.default_rng(i).integers(1, 99, 100)) for i in range(2)]
    by_file = calibrated_by(EngineOptions(threads=1), chunks, None, lambda done, n: None)
    for name, how in (("made", SmoothInt8()), ("plain", method_named("int8", None, None, None))):
        quantize(origin, how, tmp_path / name, calibrate=by_file if name == "made" else None)
    expected, *found = (
        reference_logits(load(tmp_path / x), PROMPT) for x in ("origin", "made", "plain")
    )
    errors = [np.abs(x - expected).max() for x in found]
    assert errors[0] < 3 * errors[1]
