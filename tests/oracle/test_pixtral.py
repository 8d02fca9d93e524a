"""Images of Pixtral and Mistral 3 against ``transformers``, live: pixels of its Pillow processor to
the bit, defaults, and logits in float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.checkpoints.tower import read_tower
from kvasir.core.tiles import TileSpec, media_at
from kvasir.exec.tiles import patches
from kvasir.formats.mapped import TensorTable
from kvasir.serve.text import load_text
from kvasir.vision.messages import Uncut
from kvasir.vision.preparing import Bounding
from kvasir.vision.processor import slicing_of
from kvasir.vision.reader import UnfitImage, tiles_of
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_pixtral
from tests.oracle.test_images import BOUND, MODES, image_file, loaded, logits_of
from tests.seeing import Seeing
from tests.tiny import TinyModel

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SIZES = ((1, 1), (3, 40), (200, 20), (160, 120), (83, 177), (64, 64), (65, 64), (300, 290))
WAYS = (Bounding(8, 48, 3), Bounding(28, 140, 3), Bounding(16, 1024, 2))
MEAN, STD = (0.5, 0.4, 0.6), (0.5, 0.3, 0.7)
MODELS: dict[str, Callable[[], TinyModel]] = {
    "mistral3": tiny_pixtral.mistral3,
    "mistral3_padded": lambda: tiny_pixtral.mistral3(48, True),
    "mistral3_ministral3": tiny_pixtral.mistral3_ministral3,
    "pixtral": tiny_pixtral.pixtral,
}


def processor(unit: int, longest: int, resample: int = 3) -> Any:
    module = pytest.importorskip(
        "transformers.models.pixtral.image_processing_pil_pixtral", reason="make test-oracle"
    )
    return module.PixtralImageProcessorPil(
        size={"longest_edge": longest},
        patch_size={"height": unit, "width": unit},
        resample=resample,
        image_mean=list(MEAN),
        image_std=list(STD),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS, ids=lambda x: f"{x.unit}-{x.longest}")
def test_pixels(way: Bounding, mode: str) -> None:
    reads = processor(way.unit, way.longest, way.resample)
    spec = TileSpec(0, way.unit, 1, 1 / 255, MEAN, STD)
    for i, size in enumerate(SIZES):
        data = image_file(mode, size, i)
        try:
            found = tiles_of(data, way)
        except UnfitImage:
            with pytest.raises(Exception):  # noqa: B017 (whatever Pillow makes of no pixels)
                reads(loaded(data), return_tensors="np")
            continue
        assert isinstance(found, Uncut)
        given = reads(loaded(data), return_tensors="np")["pixel_values"][0]
        height, width = found.lines * way.unit, found.columns * way.unit
        assert given.shape == (3, height, width)
        media = media_at(0, found.lines * found.columns, found.pixels, found.columns)
        own = patches(media, spec).reshape(found.lines, found.columns, 3, way.unit, way.unit)
        assert (own.transpose(2, 0, 3, 1, 4).reshape(given.shape) == given).all()


@pytest.mark.parametrize("executor", ["reference", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, executor: str, tmp_path: Path) -> None:
    """A prompt with two images of other shapes, and without any."""
    torch = pytest.importorskip("torch", reason="make test-oracle")
    from transformers import AutoModelForImageTextToText

    folder = tiny_pixtral.write(MODELS[name](), tmp_path)
    seeing, sight = Seeing.open(folder, "float32", "f32"), load_text(open_model(folder)).sight
    assert sight is not None
    way, image = sight.slicing, tiny_pixtral.IMAGE
    assert isinstance(way, Bounding)
    files = [image_file("RGB", (30, 13), 1), image_file("RGB", (17, 21), 2)]
    read = [tiles_of(file, way) for file in files]
    reads = processor(way.unit, way.longest)
    oracle = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    pictured = sight.placeholders.expand([2, 9, image, 30, 31, image, 7, 8, 5], read)
    plain = sight.placeholders.expand(list(range(3, 40)), [])
    for found in (pictured, plain):
        more = {}
        if found.media:
            given = reads([loaded(file) for file in files], return_tensors="pt")
            more = {key: given[key] for key in ("pixel_values", "image_sizes")}
        with torch.no_grad():
            expected = oracle(input_ids=torch.tensor([found.ids]), **more).logits[0].numpy()
        own = logits_of(seeing, executor, found.ids, found.media)
        assert np.abs(own - expected).max() <= BOUND * np.abs(expected).max()


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [("mistral3", "Mistral3ForConditionalGeneration"), ("llava", "LlavaForConditionalGeneration")],
)
def test_defaults(kind: str, architecture: str, tmp_path: Path) -> None:
    """What holds of a tower and a processor that say nothing."""
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    vision, fold = {"model_type": "pixtral"}, 2 if kind == "mistral3" else 1
    full = transformers.AutoConfig.for_model(kind, vision_config=vision).to_dict()
    above = {"architectures": [architecture]}
    if kind == "llava":
        above |= {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    (tmp_path / "preprocessor_config.json").write_text('{"resample": 3}')
    said = {"patch_size": full["vision_config"]["patch_size"], "spatial_merge_size": fold}
    (tmp_path / "processor_config.json").write_text(json.dumps(said))

    def source(config: dict[str, object]) -> ModelSource:
        return ModelSource(tmp_path, "hf", "model", {**config, **above}, TensorTable({}))

    bare = source({"vision_config": vision, "text_config": {}})
    tower = read_tower(bare, 0)
    assert tower == read_tower(source({**full, "text_config": {}}), 0)
    module = pytest.importorskip("transformers.models.pixtral.image_processing_pil_pixtral")
    way, reads = slicing_of(bare), module.PixtralImageProcessorPil()
    assert way == Bounding(reads.patch_size["height"] * fold, reads.size["longest_edge"], 3)
    assert reads.resample == 3
    given = (list(reads.image_mean), list(reads.image_std))
    assert (list(tower.tile.mean), list(tower.tile.std)) == given
