"""Falcon-H1's factors and Nemotron-H's layers of one part, as their files have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from kvasir.checkpoints import config_from
from kvasir.core.errors import ModelError
from kvasir.weights.source import open_model
from tests import tiny, tiny_hybrid
from tests.loading import load

_ONES = {
    **dict.fromkeys(("embedding_multiplier", "lm_head_multiplier", "key_multiplier"), 1.0),
    **dict.fromkeys(("attention_in_multiplier", "attention_out_multiplier"), 1.0),
    **dict.fromkeys(("ssm_in_multiplier", "ssm_out_multiplier"), 1.0),
    "ssm_multipliers": [1.0] * 5,
    "mlp_multipliers": [1.0, 1.0],
}


def test_a_factor_of_one_is_no_op(tmp_path: Path) -> None:
    plain = load(tiny.write_hf(tiny_hybrid.falcon_h1(**_ONES), tmp_path / "plain")).program
    scaled = load(tiny.write_hf(tiny_hybrid.falcon_h1(), tmp_path / "scaled")).program
    counts = [sum(op.kind == "scale" for op in x.ops) for x in (plain, scaled)]
    n_layers, of_layer = 3, 6
    assert counts == [0, 2 + n_layers * of_layer]


def test_steps_with_a_factor_stay_f32(tmp_path: Path) -> None:
    """Their linear is not what the scan reads."""
    path = tiny.write_hf(tiny_hybrid.falcon_h1(), tmp_path, "BF16")
    program = load(path, "auto").program
    for layer in range(3):
        assert program.weights[f"layers.{layer}.scan_step"].layout == "f32"
        assert program.weights[f"layers.{layer}.scan_in"].layout == "bf16"


def test_factors_of_a_convolution_are_in_its_taps(tmp_path: Path) -> None:
    """96 columns of x, 32 of B, 32 of C; each factor times that of the rows."""
    model = tiny_hybrid.falcon_h1()
    taps = load(tiny.write_hf(model, tmp_path)).binding["layers.1.conv"].dequantize()
    stored = model.tensors["model.layers.1.mamba.conv1d.weight"][:, 0].T
    factors = np.repeat(1.3 * np.array([1.4, 0.6, 1.5]), [96, 32, 32])
    assert_allclose(taps, stored * factors, rtol=1e-6)


def test_each_layer_has_the_part_that_a_file_says(tmp_path: Path) -> None:
    """As a list, as a word, and by the numbers of a GGUF file."""
    words = tiny_hybrid.nemotron_h_moe()
    listed = config_from(open_model(tiny.write_hf(words, tmp_path / "words")))
    of_file = config_from(open_model(tiny.write_gguf_model(words, tmp_path / "m.gguf")))
    for config in (listed, of_file):
        assert [x.scan is not None for x in config.layers] == [True, False, False, False]
        assert [x.attends for x in config.layers] == [False, False, True, False]
        assert [x.experts is not None for x in config.layers] == [False, True, False, True]
        assert [x.ffn_size for x in config.layers] == [0, 32, 0, 32]
        assert [x.n_kept for x in config.layers] == [2, 0, 1, 0]
    letters = config_from(open_model(tiny.write_hf(tiny_hybrid.nemotron_h(), tmp_path / "letters")))
    assert [x.mixes for x in letters.layers] == [True, False, True, True, False]
    assert [x.ffn_size for x in letters.layers] == [0, 96, 0, 0, 96]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"hybrid_override_pattern": "M-*X-"}, "hybrid_override_pattern is 'M-.X-', expected 1 to"),
        ({"hybrid_override_pattern": ""}, "hybrid_override_pattern is '', expected 1 to"),
        ({"hybrid_override_pattern": ["M"]}, "expected 1 to"),
        ({"layers_block_type": ["mamba", "conv"]}, "layers_block_type is .* expected 1 to"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern is None, expected 1 to"),
    ],
)
def test_layers_of_no_known_part_are_refused(
    own: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        config_from(open_model(tiny.write_hf(tiny_hybrid.nemotron_h(**own), tmp_path)))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"mlp_multipliers": [0.0, 1.0]}, "mlp_multipliers is .*, expected 2 positive numbers"),
        ({"ssm_multipliers": [1.0]}, "ssm_multipliers is .*, expected 5 positive numbers"),
        ({"mamba_d_ssm": 90}, "mamba_d_ssm is 90, expected 90 columns in mamba_n_heads = 4 equal"),
    ],
)
def test_factors_and_widths_are_checked(
    own: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        config_from(open_model(tiny.write_hf(tiny_hybrid.falcon_h1(**own), tmp_path)))


def test_a_width_that_is_null_follows_from_the_model(tmp_path: Path) -> None:
    model = tiny_hybrid.falcon_h1(mamba_d_ssm=None, mamba_d_head="auto")
    config = config_from(open_model(tiny.write_hf(model, tmp_path)))
    scan = config.layers[0].scan
    assert scan is not None and (scan.inner, scan.head_dim) == (2 * 64, 32)
