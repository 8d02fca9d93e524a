"""LLaVA-OneVision: an image as a tile and a canvas of others, what lies on it, and files that do
not fit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from kvasir.checkpoints.loaded import load_model
from kvasir.checkpoints.tower import read_tower
from kvasir.core.errors import ModelError
from kvasir.core.tiles import Canvas, Media, TileSpec, media_at
from kvasir.exec.canvas import TileRows, paved
from kvasir.ir.program import FloatArray
from kvasir.serve.reopened import _filled
from kvasir.serve.text import load_text
from kvasir.vision.messages import Paved, decoder
from kvasir.vision.reader import tiles_in
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_llava
from tests.tiny import TinyModel


def source(folder: Path) -> ModelSource:
    return open_model(tiny_llava.write(tiny_llava.llava_onevision(), folder))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vision_feature_layer", -2),
        ("vision_feature_select_strategy", "default"),
        ("projector_hidden_act", "relu"),
        ("multimodal_projector_bias", False),
        ("vision_aspect_ratio", "anyres"),
        ("vision_aspect_ratio", "anyres_max_65"),
        ("image_grid_pinpoints", [[34, 35]]),
        ("image_grid_pinpoints", [[34, 34, 34]]),
        ("image_grid_pinpoints", [[34, 34 * 65]]),
        ("image_grid_pinpoints", []),
    ],
)
def test_other_ways_of_llava_are_refused(field: str, value: object, tmp_path: Path) -> None:
    model = tiny_llava.llava_onevision()
    model = TinyModel(model.name, {**model.config, field: value}, model.tensors)
    with pytest.raises(ModelError, match=f"config.json: {field} is"):
        load_text(open_model(tiny_llava.write(model, tmp_path)))


@pytest.mark.parametrize(
    ("processor", "why"),
    [
        ({"size": {"height": 32, "width": 32}}, "size is 32, expected the 34 pixels"),
        ({"image_grid_pinpoints": [[34, 34]]}, "expected those of config.json"),
        ({"do_center_crop": True}, "do_center_crop is True"),
    ],
)
def test_processors_of_llava_that_do_not_fit(
    processor: dict[str, object], why: str, tmp_path: Path
) -> None:
    folder = tiny_llava.write(tiny_llava.llava_onevision(), tmp_path, **processor)
    with pytest.raises(ModelError, match=why):
        load_text(open_model(folder))


@pytest.mark.parametrize(("above", "below"), [(True, False), (False, True)])
def test_the_head_of_llava_may_be_tied_in_either_place(
    above: bool, below: bool, tmp_path: Path
) -> None:
    model = tiny_llava.llava_onevision(tie_word_embeddings=below)
    tensors = {name: x for name, x in model.tensors.items() if "lm_head" not in name}
    config = {**model.config, "tie_word_embeddings": above}
    folder = tiny_llava.write(TinyModel(model.name, config, tensors), tmp_path)
    assert load_model(str(folder)).config.tied


def test_an_image_becomes_a_tile_and_a_canvas(tmp_path: Path) -> None:
    """Of 100 x 40 pixels in six tiles two lines above and below are left out, and 4 x 12 rows are
    shrunk."""
    text = load_text(source(tmp_path))
    assert text.sight is not None
    said = [{"type": "text", "text": "<image>"}, {"type": "image"}]
    ids = text.template.encode([{"role": "user", "content": said}])
    assert ids.count(tiny_llava.IMAGE) == 1
    read = tiles_in(Image.new("RGB", (100, 40), "white"), text.sight.slicing)
    assert isinstance(read, Paved)
    assert (read.lines, read.columns, read.canvas) == (3, 9, Canvas(3, 2, 0))
    found = text.sight.placeholders.expand(ids, [read], first=5)
    at, n = found.ids.index(tiny_llava.IMAGE) + 5, tiny_llava.N_TOKENS
    assert [(x.start, x.n_tokens) for x in found.media] == [(at, n), (at + n, 3 * 10)]
    tile = read_tower(open_model(tmp_path), 64).tile
    assert all(tile.fits(x) for x in found.media)
    said = msgspec.msgpack.encode(read)
    assert decoder.decode(said) == read, "as the process that reads images says it"
    bare = [replace(x, pixels=b"") for x in found.media]
    assert _filled(bare, read.parts) == found.media, "what is kept of it gets its pixels again"
    whole = found.media[1]
    canvases = Canvas(0, 2), Canvas(4, 2), Canvas(3, 3), Canvas(3, 2, 3)
    unfit = [replace(whole, canvas=x) for x in (*canvases, Canvas(3, -2), None)]
    unfit += [replace(whole, columns=14, n_tokens=28), replace(whole, n_tokens=50)]
    unfit += [replace(whole, breaks=1, n_tokens=33), replace(whole, pixels=whole.pixels[:-1])]
    assert not any(tile.fits(x) for x in unfit)
    names = {media_at(0, 30, whole.pixels, 10, canvas=x).digest for x in (None, *canvases)}
    assert len(names) == 1 + len(canvases)


def test_rows_of_a_canvas_lie_between_those_of_its_tiles() -> None:
    """Two tiles of 2 x 2 rows, of which three columns are made, and a row behind each line."""
    tile = TileSpec(2, 1, 1, 1.0, (0.0,) * 3, (1.0,) * 3, newline=True)
    media = media_at(0, 8, bytes(range(24)), 4, canvas=Canvas(2))

    def rows_of(one: Media) -> TileRows:
        yield
        return np.frombuffer(one.pixels, np.uint8)[::3, None].astype(np.float32)

    def whole(canvas: Canvas, media: Media, newline: FloatArray) -> FloatArray:
        steps = paved(media, canvas, tile, rows_of, newline)
        assert [next(steps) for _ in range(2)] == [None] * 2, "one of each tile"
        with pytest.raises(StopIteration) as end:
            next(steps)
        found: FloatArray = end.value.value
        return found

    found = whole(Canvas(2), media, np.full((1, 1), 99, np.float32))
    # pixels 0 3 | 12 15 and 6 9 | 18 21, of which the middles of thirds are made
    share = np.float32(4) / np.float32(3) * np.float32(0.5) - np.float32(0.5)
    first, last = 3 * share, 15 - 3 * share
    expected = [[first, 7.5, last, 99], [6 + first, 13.5, 6 + last, 99]]
    assert_allclose(found.reshape(2, 4), expected, rtol=1e-6)
    kept = media_at(0, 3, bytes(range(24)), 3, canvas=Canvas(2, 0, 1))
    own = whole(Canvas(2, 0, 1), replace(kept, n_tokens=6), found[3:4])
    assert_array_equal(own.reshape(2, 3), [[3, 12, 99], [9, 18, 99]])
