"""The tower of Gemma 4: nothing of it can be altered unnoticed, what fits none is refused, images
fill the tokens that they may have, and which layers see ahead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.testing import assert_array_equal
from PIL import Image

from kvasir.checkpoints import build_program, config_from, tower
from kvasir.checkpoints.loaded import load_model, model_facts
from kvasir.checkpoints.tensors import ignorable
from kvasir.checkpoints.tower import read_tower, seeing_family
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.core.errors import ModelError
from kvasir.core.tiles import media_at
from kvasir.exec.tiles import encoder_inputs
from kvasir.ir.bundle import CORNERS, SHARES
from kvasir.ir.printer import render
from kvasir.models.families import FAMILIES
from kvasir.models.family import PooledTowerSpec
from kvasir.serve.text import load_text
from kvasir.vision.messages import Uncut
from kvasir.vision.preparing import Scaling
from kvasir.vision.reader import UnfitImage, tiles_in
from kvasir.vision.slicing import scaled_size
from kvasir.weights.bind import bind
from kvasir.weights.source import ModelSource, open_model
from kvasir.weights.transforms import from_floats, lines_first
from tests import tiny_gemma4_vision
from tests.tiny import TinyModel
from tests.tiny_gemma4_vision import BEGIN, END, IMAGE, gemma4_vision, write


def altered(spec: PooledTowerSpec) -> Iterator[tuple[str, PooledTowerSpec]]:
    for name, tensor in spec.names.items():
        yield name, replace(spec, names={**spec.names, name: f"other.{tensor}"})
    for name, size in spec.sizes.items():
        yield name, replace(spec, sizes={**spec.sizes, name: 2 * size})
    for flag in ("gated", "qkv_bias", "o_bias", "mlp_bias", "both_ways", "parallel", "post_norms"):
        change: dict[str, Any] = {flag: not getattr(spec.block, flag)}
        yield flag, replace(spec, block=replace(spec.block, **change))
    yield "qk_norm", replace(spec, block=replace(spec.block, qk_norm="heads"))
    yield "norm", replace(spec, block=replace(spec.block, norm="layer"))
    yield "encoders", replace(spec, encoders=("other.",))
    yield "connectors", replace(spec, connectors=("other.", "others."))
    for i, (name, token) in enumerate(spec.tokens):
        for other in ((f"other_{name}", token), (name, token + 1)):
            yield name, replace(spec, tokens=(*spec.tokens[:i], other, *spec.tokens[i + 1 :]))


def seen(source: ModelSource, bare: ModelSource) -> list[str]:
    """Of a model whose files say all, and of one whose files say the least."""
    try:
        family = seeing_family(source)
        assert family is not None and isinstance(family.tower, PooledTowerSpec)
        programs = build_tower(read_tower(source, 64)).programs
        return [*map(render, programs), repr(read_tower(bare, 0)), repr(family.tower.tokens)]
    except (ModelError, KeyError, ValueError) as error:
        return [repr(error)]


def test_nothing_is_altered_unnoticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(write(gemma4_vision(), tmp_path / "whole"))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"a": 1}}))
    text = {"hidden_size_per_layer_input": 0}
    config = {"architectures": source.config["architectures"], "text_config": text}
    bare = with_fields(source, path=tmp_path, config={**config, "vision_config": {}})
    family = seeing_family(source)
    assert family is not None and isinstance(family.tower, PooledTowerSpec)
    expected = seen(source, bare)
    assert len(expected) > 2
    for what, spec in altered(family.tower):
        changed = replace(family, tower=spec)
        table = tuple(changed if each is family else each for each in FAMILIES)
        monkeypatch.setattr(tower, "FAMILIES", table)
        assert seen(source, bare) != expected, what


REFUSED: dict[str, tuple[dict[str, object], dict[str, object], str]] = {
    "biases": ({"attention_bias": True}, {}, "attention_bias is True"),
    "activation": ({"hidden_activation": "silu"}, {}, "hidden_activation is 'silu'"),
    "rope": ({"rope_parameters": {"rope_type": "yarn"}}, {}, "rope_type is 'yarn'"),
    "heads": ({"head_dim": 18}, {}, "head_dim is 18, expected a multiple of 4"),
    "groups": ({"num_key_value_heads": 1}, {}, "num_key_value_heads is 1, expected num_att"),
    "places": ({"position_embedding_size": 23}, {}, "23, expected at least 24"),
    "patches": ({"patch_size": 8}, {}, "patch_size is 4, expected the 8"),
    "rows": ({}, {"pooling_kernel_size": 2}, "pooling_kernel_size is 2, expected the 3"),
    "normalizes": ({}, {"do_normalize": True}, "do_normalize is True"),
    "as it is": ({}, {"do_resize": False}, "do_resize is False"),
    "tokens": ({}, {"max_soft_tokens": 9}, "windows of 8 tokens, expected at least the 9"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    vision, processor, why = REFUSED[name]
    model = gemma4_vision()
    own = model.config["vision_config"]
    assert isinstance(own, dict)
    model = TinyModel("m", {**model.config, "vision_config": {**own, **vision}}, model.tensors)
    folder = write(model, tmp_path, **processor)
    with pytest.raises(ModelError, match=why):
        load_model(str(folder))
        load_text(open_model(folder))


@pytest.mark.parametrize(
    ("above", "why"),
    [
        ({"audio_config": {"hidden_size": 4}}, "audio_config is"),
        ({"boi_token_id": 40}, "no special token 40"),
        ({"eoi_token_id": 41}, "no special token 41"),
        ({"image_token_id": 42}, "no special token 42"),
    ],
)
def test_other_parts_of_the_model_are_refused(
    above: dict[str, object], why: str, tmp_path: Path
) -> None:
    source = open_model(write(gemma4_vision(), tmp_path))
    with pytest.raises(ModelError, match=why):
        load_text(with_fields(source, config={**source.config, **above}))


@pytest.mark.parametrize("clips", [True, False])
def test_a_tower_that_is_not_computed_leaves_the_text(
    clips: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of E2B and E4B, with what hears beside it."""
    vocab = tiny_gemma4_vision.VOCAB
    own = gemma4_vision(hidden_size_per_layer_input=32, vocab_size_per_layer_input=vocab)
    vision, heard = own.config["vision_config"], "model.audio_tower.layers.0.weight"
    assert isinstance(vision, dict)
    config = {**own.config, "vision_config": {**vision, "use_clipped_linears": clips}}
    config["audio_config"] = {"hidden_size": 4}
    tensors = {**own.tensors, heard: np.ones((4, 4), np.float32)}
    folder = write(TinyModel("m", config, tensors), tmp_path)
    model = load_model(str(folder))
    assert (model.tower, model.eyes, model.config.sees) == (None, None, False)
    said = caplog.messages[-1]
    assert ("use_clipped_linears" in said) == clips
    assert "runs without its images: they need " in said
    assert "text_config.hidden_size_per_layer_input" in said
    text = load_text(open_model(folder))
    assert text.sight is None
    bind(build_program(model.config), model.source, ignorable(model.config))


@pytest.mark.parametrize("spans", [True, False])
def test_layers_with_a_window_see_ahead_if_the_file_says_so(spans: bool, tmp_path: Path) -> None:
    model = load_model(str(write(gemma4_vision(spans=spans), tmp_path)))
    attends = [op for op in build_program(model.config).ops if op.kind == "attention"]
    assert [len(op.ins) == 2 for op in attends] == [spans, False] * 3
    assert model_facts(model).span_tokens == (tiny_gemma4_vision.MOST if spans else 0)
    full = ["full_attention"] * 6
    own = gemma4_vision(layer_types=full, num_global_key_value_heads=None)
    assert not config_from(open_model(write(own, tmp_path))).block.spans


@pytest.mark.parametrize(
    ("size", "filled"),
    [
        ((100, 100), (24, 24)),
        ((1, 1), (24, 24)),
        ((24, 48), (24, 48)),
        ((90, 20), (72, 12)),
        ((3, 400), (12, 96)),
        ((50, 4), (96, 12)),
        ((1000, 990), (24, 24)),
    ],
)
def test_images_fill_the_tokens_that_they_may_have(
    size: tuple[int, int], filled: tuple[int, int]
) -> None:
    """8 tokens of 12 x 12 pixels, in the shape of the image; a thin one in one line."""
    assert scaled_size(size, Scaling(12, 8, 3)) == filled


def test_an_image_of_one_token_may_be_nothing() -> None:
    with pytest.raises(UnfitImage, match="has 17 x 17 pixels, of which nothing is left in 1 token"):
        tiles_in(Image.new("RGB", (17, 17)), Scaling(12, 1, 3))


def test_an_image_is_between_two_tokens(tmp_path: Path) -> None:
    text = load_text(open_model(write(gemma4_vision(), tmp_path)))
    assert text.sight is not None
    said = [{"type": "text", "text": "<|image|>"}, {"type": "image"}]
    ids = text.template.encode([{"role": "user", "content": said}])
    assert ids.count(IMAGE) == 1
    read = tiles_in(Image.new("RGB", (90, 20), "white"), text.sight.slicing)
    assert isinstance(read, Uncut) and (read.lines, read.columns) == (1, 6)
    found = text.sight.placeholders.expand(ids, [read], first=5)
    at = found.ids.index(IMAGE)
    assert found.ids[at - 1 : at + 7] == (BEGIN, *(IMAGE,) * 6, END)
    (media,) = found.media
    assert (media.start, media.n_tokens, media.columns) == (at + 5, 6, 6)
    tile = read_tower(open_model(tmp_path), 64).tile
    assert tile.fits(media)
    assert not tile.fits(media_at(0, 9, bytes(9 * 3 * 12**2), 3))


def test_places_of_patches(tmp_path: Path) -> None:
    """Of two rows side by side: a column, and a line behind all columns."""
    own = build_tower(read_tower(open_model(write(gemma4_vision(), tmp_path)), 64))
    given = encoder_inputs(own, media_at(0, 2, bytes(2 * 3 * 12**2), 2))
    columns, lines = given[CORNERS][:, 0], given[CORNERS][:, 1] - tiny_gemma4_vision.AXIS
    assert_array_equal(columns, [0, 1, 2] * 3 + [3, 4, 5] * 3)
    assert_array_equal(lines, [0, 0, 0, 1, 1, 1, 2, 2, 2] * 2)
    assert_array_equal(given[SHARES], [[1, 1, 0, 0]] * 18)


def test_lines_stand_before_columns() -> None:
    """Of two heads, halves of columns and then of lines."""
    rows = np.arange(16, dtype=np.float32)
    expected = [4, 5, 0, 1, 6, 7, 2, 3]
    found = lines_first(from_floats(rows[:8]), 2).decode()
    assert_array_equal(found, [2, 0, 3, 1, 6, 4, 7, 5])
    whole = lines_first(from_floats(rows[:8, None]), 1)
    assert_array_equal(whole.decode()[:, 0], expected)
    assert whole.shape == (8, 1)
