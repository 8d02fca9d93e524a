"""Gemma 3n: streams, gates and sizes of each layer from both kinds of file; what sees and hears is
left out; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kvasir.checkpoints import build_program, config_from
from kvasir.checkpoints.loaded import load_model
from kvasir.core.errors import ModelError
from kvasir.exec.cpu.place_weights import place_weights
from kvasir.ir.fuse import fuse
from kvasir.ir.program import Transform
from kvasir.models import ModelConfig
from kvasir.models.export import Export
from kvasir.models.stream_spec import StreamSpec
from kvasir.quantize.choose import choose
from kvasir.weights.shapes import shape_before
from kvasir.weights.source import open_model
from kvasir.weights.transforms import MATRICES, apply, from_floats
from tests import tiny
from tests.loading import load
from tests.tiny import TinyModel
from tests.tiny_gemma3n import gemma3n, gemma3n_few, gemma3n_seeing

_WRITERS: dict[str, Callable[[TinyModel, Path], Path]] = {
    "hf": tiny.write_hf,
    "gguf": lambda model, folder: tiny.write_gguf_model(model, folder / "m.gguf"),
}


def read(model: TinyModel, folder: Path, kind: str = "hf") -> ModelConfig:
    return config_from(open_model(_WRITERS[kind](model, folder)))


@pytest.mark.parametrize("kind", _WRITERS)
def test_layers(kind: str, tmp_path: Path) -> None:
    config = read(gemma3n(), tmp_path, kind)
    assert config.streams == StreamSpec(4, 1, 32, True)
    assert [x.ffn_size for x in config.layers] == [64, 96, 64, 32, 64, 96]
    assert [x.source for x in config.layers] == [None, None, None, None, 2, 3]
    assert [x.window for x in config.layers] == [8, 0] * 3
    for layer, share in zip(config.layers, (0.8, 0, 0.3, 0, 0.6, 0), strict=True):
        wanted = NormalDist().inv_cdf(share) if share else None
        assert layer.deviations == (wanted if wanted is None else pytest.approx(wanted, rel=1e-6))


def test_gates_of_a_file_that_does_not_say_it(tmp_path: Path) -> None:
    """As in the class of ``transformers``."""
    sizes = {"num_hidden_layers": 12, "intermediate_size": 64, "num_kv_shared_layers": 0}
    few = {**gemma3n().config, "activation_sparsity_pattern": None, "layer_types": None}
    for n, sparse in ((12, 10), (10, 0)):
        own = TinyModel("x", {**few, **sizes, "num_hidden_layers": n}, gemma3n().tensors)
        layers = read(own, tmp_path / str(n)).layers
        assert [x.deviations is not None for x in layers] == [i < sparse for i in range(n)]
        assert [x.window == 0 for x in layers] == [i % 5 == 4 for i in range(n)]
        assert layers[0].deviations in (None, NormalDist().inv_cdf(0.95))


def test_what_sees_and_hears_is_left_out(tmp_path: Path) -> None:
    """The language model of a released folder is that of a folder of its own."""
    seeing, alone = (tiny.write_hf(x(), tmp_path / x.__name__) for x in (gemma3n_seeing, gemma3n))
    assert load_model(str(seeing)).tower is None
    models = [load(folder) for folder in (seeing, alone)]
    assert not models[0].config.sees
    assert models[0].program.ops == models[1].program.ops


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"altup_num_inputs": 5}, "altup_num_inputs is 5, expected at most 4"),
        ({"altup_active_idx": 4}, "altup_active_idx is 4, expected at most 3"),
        ({"activation_sparsity_pattern": [0.5]}, "expected 6 numbers, each below 1"),
        ({"activation_sparsity_pattern": [1.0] * 6}, "expected 6 numbers, each below 1"),
        ({"activation_sparsity_pattern": [-0.5] * 6}, "expected 6 numbers, each below 1"),
        ({"intermediate_size": [64] * 5}, "intermediate_size is"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5, expected fewer"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, object], why: str, tmp_path: Path) -> None:
    model = gemma3n()
    with pytest.raises(ModelError, match=why):
        read(TinyModel("x", {**model.config, **fields}, model.tensors), tmp_path)


def test_tokens_without_embeddings_of_layers_have_those_of_the_first(tmp_path: Path) -> None:
    model = load(tiny.write_hf(gemma3n_few(), tmp_path))
    ids = model.program.constants["layer_ids"]
    n = tiny.VOCAB - 200
    assert_array_equal(ids, [*range(n), *[0] * 200])


def test_shares_of_streams_stay_floats(tmp_path: Path) -> None:
    """As routers do, and what they are made of."""
    program = fuse(build_program(read(gemma3n(), tmp_path), max_positions=4))
    formats = dict.fromkeys(program.weights, "F32")
    placed = place_weights(program, dtype="bfloat16", formats=formats)
    plain = {name for name, x in placed.weights.items() if len(x.shape) > 1 and x.layout == "f32"}
    parts = ("stream_router", "stream_predict", "stream_correct")
    assert plain == {f"layers.{i}.{part}" for i in range(6) for part in parts}


def test_nothing_reads_rows_between_layers(tmp_path: Path) -> None:
    class Tapping(Export):
        def tapping(self, after: object, tapped: object) -> Callable[[int, str], str]:
            return lambda layer, x: x

    with pytest.raises(ModelError, match="gemma3n: rows are several streams"):
        build_program(read(gemma3n(), tmp_path), max_positions=4, export=Tapping())


def test_one_of_several_matrices() -> None:
    values = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    for i, name in enumerate(MATRICES):
        step = (Transform(name, (i, 3)),)
        assert shape_before((2, 4), step) == (3, 2, 4)
        assert_array_equal(apply(from_floats(values), step).decode(), values[i])


def test_routers_of_streams_are_not_quantized(tmp_path: Path) -> None:
    model = load_model(str(tiny.write_hf(gemma3n(), tmp_path)))
    selection = choose(model, with_head=False)
    routers = [name for name in selection.kept if "modality_router" in name]
    assert len(routers) == 6 and len(selection.quantized) > 50
    assert not any("router" in name for name in selection.quantized)
