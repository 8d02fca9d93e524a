"""Families with linear scans: what their GGUF files have in another form, which layers attend, and
sizes that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from kvasir.checkpoints import config_from
from kvasir.core.errors import ModelError
from kvasir.weights.source import open_model
from tests import tiny, tiny_scan
from tests.loading import Loaded, load
from tests.tiny import TinyModel


def both(make: Callable[[], TinyModel], folder: Path) -> tuple[Loaded, Loaded]:
    """From a folder, and from the GGUF file of the same model."""
    model = make()
    hf = load(tiny.write_hf(model, folder / "hf"))
    return hf, load(tiny.write_gguf_model(model, folder / "m.gguf"))


def values(model: Loaded, name: str) -> tiny.Array:
    return model.binding[f"layers.0.{name}"].dequantize()


@pytest.mark.parametrize("make", [tiny_scan.mamba2, tiny_scan.qwen3_next])
def test_gguf_files_hold_rates_and_not_their_logarithms(
    make: Callable[[], TinyModel], tmp_path: Path
) -> None:
    hf, gguf = both(make, tmp_path)
    assert_allclose(values(hf, "scan_rate"), values(gguf, "scan_rate"), rtol=1e-6)
    assert (values(gguf, "scan_rate") < 0).all()


def test_gguf_files_hold_norms_with_their_one_but_for_that_of_the_net(tmp_path: Path) -> None:
    hf, gguf = both(tiny_scan.qwen3_5, tmp_path)
    stored = tiny_scan.qwen3_5().tensors["model.layers.0.input_layernorm.weight"]
    for model in (hf, gguf):
        assert_allclose(values(model, "attn_norm"), stored + 1, rtol=1e-6)
    assert_array_equal(values(hf, "scan_norm"), values(gguf, "scan_norm"))


def test_gguf_files_of_qwen3_5_have_heads_of_one_key_apart(tmp_path: Path) -> None:
    """Two keys of two heads each: heads 0, 2, 1, 3, in all that has a row or a column for each."""
    hf, gguf = both(tiny_scan.qwen3_5, tmp_path)
    found = [[x for x in model.program.ops if x.kind == "linear_scan"] for model in (hf, gguf)]
    assert [{op.flag("tiled") for op in ops} for ops in found] == [{False}, {True}]
    order = [0, 2, 1, 3]
    for name in ("step_bias", "scan_step", "scan_share"):
        assert_array_equal(values(hf, name)[order], values(gguf, name))
    rows = values(hf, "scan_gate").reshape(4, 32, 64)
    assert_array_equal(rows[order].reshape(128, 64), values(gguf, "scan_gate"))
    columns = values(hf, "scan_out").reshape(64, 4, 32)
    assert_array_equal(columns[:, order].reshape(64, 128), values(gguf, "scan_out"))
    first, v = np.split(values(hf, "scan_in"), [96])
    assert_array_equal(first, values(gguf, "scan_in")[:96])
    assert_array_equal(v.reshape(4, 32, 64)[order].reshape(128, 64), values(gguf, "scan_in")[96:])


@pytest.mark.parametrize(("every", "expected"), [(2, [1, 3]), (None, [3])])
@pytest.mark.parametrize("make", [tiny_scan.qwen3_next, tiny_scan.qwen3_5])
def test_layers_that_attend_are_every_so_many_th(
    make: Callable[..., TinyModel], every: int | None, expected: list[int], tmp_path: Path
) -> None:
    model = make(layer_types=None, full_attention_interval=every)
    config = config_from(open_model(tiny.write_hf(model, tmp_path)))
    assert [i for i, layer in enumerate(config.layers) if layer.attends] == expected


def test_a_model_of_states_alone_keeps_nothing_else(tmp_path: Path) -> None:
    config = config_from(open_model(tiny.write_hf(tiny_scan.mamba2(), tmp_path)))
    columns, state = 4 * 32 + 2 * 2 * 24, 4 * 32 * 24
    assert config.kv_layers == config.windows == ()
    assert config.state_bytes == (4 * 3 * columns, 4 * state) * 3
    assert config.ropes == {}


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (tiny_scan.mamba2, {"n_groups": 3}, "n_groups is 3, expected a divisor of num_heads = 4"),
        (tiny_scan.mamba2, {"head_dim": 16}, "head_dim is 16, expected 32, 128 by 4"),
        (tiny_scan.mamba2, {"num_heads": 6}, "expand is 2, expected 128 columns in num_heads = 6"),
        (tiny_scan.mamba2, {"state_size": 512}, "state_size is 512, expected at most 256"),
        (tiny_scan.mamba2, {"conv_kernel": 9}, "conv_kernel is 9, expected at most 8"),
        (tiny_scan.mamba2, {"time_step_limit": [2, 1]}, "expected a least and a most time step"),
        (tiny_scan.mamba2, {"time_step_limit": 1.0}, "expected a least and a most time step"),
        (tiny_scan.granite_hybrid, {"layer_types": ["conv"] * 4}, "layer_types is "),
        (tiny_scan.granite_hybrid, {"hidden_act": "gelu"}, "hidden_act is 'gelu', expected one of"),
        (
            tiny_scan.granite_hybrid,
            {"position_embedding_type": "alibi"},
            "expected one of rope, nope",
        ),
        (tiny_scan.qwen3_5, {"attn_output_gate": False}, "attn_output_gate is False, expected "),
    ],
)
def test_sizes_that_do_not_fit_are_named(
    make: Callable[..., TinyModel], change: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = tiny.write_hf(make(), tmp_path)
    config = dict(make().config) | change
    source = open_model(tiny.write_hf(TinyModel("other", config, make().tensors), folder))
    with pytest.raises(ModelError, match=message):
        config_from(source)
