"""Images of LLaVA-OneVision against ``transformers``, live: pixels of its Pillow processor to the
bit, tokens, defaults, and logits in float32."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.checkpoints.tower import read_tower, tower_spec
from kvasir.formats.mapped import TensorTable
from kvasir.serve.text import load_text
from kvasir.vision.messages import Paved
from kvasir.vision.preparing import Paving
from kvasir.vision.processor import slicing_of
from kvasir.vision.reader import tiles_of
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_llava
from tests.oracle.test_images import BOUND, MODES, image_file, loaded, logits_of
from tests.seeing import Seeing

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SIZES = (
    (1, 1),
    (40, 3),
    (1, 30),
    (90, 50),
    (50, 90),
    (34, 34),
    (68, 34),
    (160, 120),
    (300, 7),
    (1, 900),
)


def processor() -> Any:
    module = pytest.importorskip(
        "transformers.models.llava_onevision.image_processing_pil_llava_onevision",
        reason="make test-oracle",
    )
    tile = tiny_llava.TILE
    return module.LlavaOnevisionImageProcessorPil(
        size={"height": tile, "width": tile},
        image_grid_pinpoints=tiny_llava.SIZES,
        image_mean=[0.5, 0.4, 0.6],
        image_std=[0.5, 0.3, 0.7],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llava.write(tiny_llava.llava_onevision(), tmp_path_factory.mktemp("llava"))


def read(folder: Path, data: bytes) -> Paved:
    found = tiles_of(data, slicing_of(open_model(folder)))
    assert isinstance(found, Paved)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_pixels(mode: str, folder: Path) -> None:
    reads = processor()
    for i, size in enumerate(SIZES):
        data = image_file(mode, size, i)
        raw = reads(loaded(data), do_rescale=False, do_normalize=False, return_tensors="np")
        found = read(folder, data)
        seen = tiny_llava.SIDE * tiny_llava.PATCH
        expected = raw["pixel_values"][0][:, :, :seen, :seen].transpose(0, 2, 3, 1)
        own = np.frombuffer(found.whole + found.pixels, np.uint8)
        assert (own.reshape(expected.shape) == expected).all(), size


def test_rows_of_an_image(folder: Path) -> None:
    """As many as the processor counts, of any shape: shrunk or not, with a border or without."""
    module = pytest.importorskip("transformers", reason="make test-oracle")
    tile = tiny_llava.TILE
    reads = module.LlavaOnevisionProcessor.__new__(module.LlavaOnevisionProcessor)
    reads.image_processor, reads.num_image_tokens = processor(), tiny_llava.N_TOKENS
    reads.vision_aspect_ratio = f"anyres_max_{tiny_llava.MOST}"
    shrunk = set()
    for width in (*range(1, 130, 7), 333):
        for height in (*range(1, 130, 5), 210):
            found = read(folder, image_file("L", (width, height), 1))
            n = sum(len(x.pixels) and x.n_tokens for x in media_of(folder, found))
            assert n == reads._get_number_of_features(height, width, tile, tile)
            shrunk.add(found.lines < found.canvas.across)
    assert len(shrunk) == 2


def media_of(folder: Path, found: Paved) -> Any:
    sight = load_text(open_model(folder)).sight
    assert sight is not None
    return sight.placeholders.expand([tiny_llava.IMAGE], [found]).media


def test_defaults(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    named = {"architectures": ["LlavaOnevisionForConditionalGeneration"]}
    full = transformers.AutoConfig.for_model("llava_onevision").to_dict() | named
    (tmp_path / "preprocessor_config.json").write_text('{"do_pad": true}')

    def source(config: Mapping[str, object]) -> ModelSource:
        return ModelSource(tmp_path, "hf", "model", config, TensorTable({}))

    vision = {"image_size": 384, "patch_size": 14}  # of the class's own 224 no tiles are made
    said = source({**named, "vision_config": vision})
    own = transformers.SiglipVisionConfig(**vision).to_dict()
    assert read_tower(said, 64) == read_tower(source({**full, "vision_config": own}), 64)
    reads, paving = type(processor()), slicing_of(said)
    assert isinstance(paving, Paving)
    assert paving == slicing_of(source({**full, "vision_config": own}))
    assert [list(x) for x in paving.sizes] == reads.image_grid_pinpoints
    assert (paving.tile, paving.resample) == (reads.size["height"], reads.resample)
    tile = read_tower(said, 64).tile
    assert (list(tile.mean), list(tile.std)) == (reads.image_mean, reads.image_std)
    assert full["image_token_index"] == tower_spec(said).image.default
    assert full["vision_aspect_ratio"] == f"anyres_max_{paving.most}"


@pytest.mark.parametrize("executor", ["reference", "cpu"])
@pytest.mark.parametrize("size", [(90, 50), (40, 90), (100, 100), (30, 2)], ids=str)
def test_logits(executor: str, size: tuple[int, int], folder: Path) -> None:
    """Two images, as a flat list: one in a border, shrunk, or almost nothing; one of a tile."""
    torch = pytest.importorskip("torch", reason="make test-oracle")
    from transformers import AutoModelForImageTextToText

    seeing, sight = Seeing.open(folder, "float32", "f32"), load_text(open_model(folder)).sight
    assert sight is not None
    files = [image_file("RGB", size, 2), image_file("L", (34, 34), 1)]
    tiles, image = [read(folder, file) for file in files], tiny_llava.IMAGE
    found = sight.placeholders.expand([2, 9, image, *range(30, 45), image, 7, 8], tiles)
    given = processor()([loaded(file) for file in files], return_tensors="pt")
    oracle = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        out = oracle(
            input_ids=torch.tensor([found.ids]),
            pixel_values=given["pixel_values"],
            image_sizes=given["image_sizes"],
            vision_aspect_ratio=json.loads((folder / "config.json").read_text())[
                "vision_aspect_ratio"
            ],
        )
    expected = out.logits[0].numpy()
    own = logits_of(seeing, executor, found.ids, found.media)
    assert np.abs(own - expected).max() <= BOUND * np.abs(expected).max()
