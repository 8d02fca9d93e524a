"""Images of Gemma 3 and InternVL against ``transformers``, live: pixels, tokens, defaults, and
logits in float32."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.checkpoints.tower import read_tower, tower_spec
from kvasir.exec.tiles import patches
from kvasir.formats.mapped import TensorTable
from kvasir.serve.text import load_text
from kvasir.vision.preparing import Slicing
from kvasir.vision.processor import slicing_of
from kvasir.vision.reader import tiles_of
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_gemma_vision, tiny_internvl
from tests.oracle.test_images import (
    BOUND,
    MODES,
    SIZES,
    check_pixels,
    image_file,
    loaded,
    logits_of,
)
from tests.seeing import Seeing

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def gemma3_processor(tile: int) -> Any:
    module = pytest.importorskip(
        "transformers.models.gemma3.image_processing_pil_gemma3", reason="make test-oracle"
    )
    return module.Gemma3ImageProcessorPil(
        size={"height": tile, "width": tile}, image_mean=[0.5, 0.4, 0.6], image_std=[0.5, 0.3, 0.7]
    )


@pytest.mark.parametrize("mode", MODES)
def test_pixels_of_images_that_are_one_tile(mode: str) -> None:
    slicing, reads = Slicing(64, 0, False, 2), gemma3_processor(64)
    for i, size in enumerate(SIZES):
        data = image_file(mode, size, i)
        given = reads(loaded(data), return_tensors="np")
        raw = reads(loaded(data), do_rescale=False, do_normalize=False, return_tensors="np")
        found = tiles_of(data, slicing)
        check_pixels(found, raw["pixel_values"], given["pixel_values"], slicing.tile)


def test_defaults_of_gemma3(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    named = {"architectures": ["Gemma3ForConditionalGeneration"]}
    full = transformers.AutoConfig.for_model("gemma3").to_dict() | named
    (tmp_path / "preprocessor_config.json").write_text('{"resample": 2}')

    def source(config: Mapping[str, object]) -> ModelSource:
        return ModelSource(tmp_path, "hf", "model", config, TensorTable({}))

    # of the class's own 14 patches of a side no 16 x 16 rows are means
    rows = {"mm_tokens_per_image": 49}
    said = source({**named, **rows, "vision_config": {}})
    assert read_tower(said, 64) == read_tower(source(full | rows), 64)
    reads, slicing = gemma3_processor(224), slicing_of(said)
    assert (slicing.tile, slicing.resample) == (type(reads).size["height"], reads.resample)
    assert list(read_tower(said, 64).tile.mean) == list(type(reads).image_mean)
    text = full["text_config"]["vocab_size"]
    assert full["image_token_index"] == tower_spec(said).image.default < text


@pytest.mark.parametrize("texts", [("", "what is it"), ("see", ""), ("a\n", "\n\nb")])
def test_ids_of_gemma3(texts: tuple[str, str], tmp_path: Path) -> None:
    """Two images, whose line feeds join those of the template and of the texts around them."""
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    folder = tiny_gemma_vision.write(tiny_gemma_vision.gemma3_vision(), tmp_path)
    names = ("boi_token", "image_token", "eoi_token")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<|bos|>",
        extra_special_tokens=dict(zip(names, tiny_gemma_vision.PARTS, strict=False)),
    )
    tile, n = tiny_gemma_vision.TILE, tiny_gemma_vision.N_TOKENS
    reads = transformers.Gemma3Processor(
        gemma3_processor(tile), tokenizer, tiny_gemma_vision.CHAT_TEMPLATE, n
    )
    files = [image_file("RGB", (40, 30), i) for i in range(2)]
    said = [{"type": "text", "text": text} for text in texts if text]
    images = [{"type": "image", "image": loaded(file)} for file in files]
    content = [*said[:1], images[0], *said[1:], images[1]]
    messages = [{"role": "user", "content": content}]
    given = reads.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    text = load_text(open_model(folder))
    assert text.sight is not None
    bare = [part if part["type"] == "text" else {"type": "image"} for part in content]
    ids = text.template.encode([{"role": "user", "content": bare}])
    tiles = [tiles_of(file, text.sight.slicing) for file in files]
    assert list(text.sight.placeholders.expand(ids, tiles).ids) == list(given["input_ids"][0])


@pytest.mark.parametrize("executor", ["reference", "cpu"])
@pytest.mark.parametrize("hidden", [32, 48])
def test_logits_of_gemma3(executor: str, hidden: int, tmp_path: Path) -> None:
    """A prompt beyond the window, with two images, whose tokens see each other."""
    torch = pytest.importorskip("torch", reason="make test-oracle")
    from transformers import AutoModelForImageTextToText

    model = tiny_gemma_vision.gemma3_vision(hidden, attn_logit_softcapping=None)
    folder = tiny_gemma_vision.write(model, tmp_path)
    seeing, sight = Seeing.open(folder, "float32", "f32"), load_text(open_model(folder)).sight
    assert sight is not None
    files = [image_file("RGB", (90, 50), 1), image_file("RGB", (32, 32), 2)]
    tiles, image = [tiles_of(file, sight.slicing) for file in files], tiny_gemma_vision.IMAGE
    found = sight.placeholders.expand([2, 9, image, *range(30, 45), image, 7, 8], tiles)
    reads, tile = gemma3_processor(tiny_gemma_vision.TILE), tiny_gemma_vision.TILE
    pixels = reads([loaded(file) for file in files], return_tensors="np")["pixel_values"]
    oracle = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = torch.tensor([found.ids])
    with torch.no_grad():
        out = oracle(
            input_ids=ids,
            pixel_values=torch.tensor(np.array(pixels)).reshape(2, 3, tile, tile),
            token_type_ids=(ids == image).long(),
        )
    expected = out.logits[0].numpy()
    own = logits_of(seeing, executor, found.ids, found.media)
    assert np.abs(own - expected).max() <= BOUND * np.abs(expected).max()


def internvl_processor(tile: int, most: int = 12) -> Any:
    module = pytest.importorskip(
        "transformers.models.got_ocr2.image_processing_pil_got_ocr2", reason="make test-oracle"
    )
    return module.GotOcr2ImageProcessorPil(
        size={"height": tile, "width": tile},
        max_patches=most,
        crop_to_patches=True,
        image_mean=[0.5, 0.4, 0.6],
        image_std=[0.5, 0.3, 0.7],
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("tile", "most"), [(32, 12), (64, 4), (64, 1)], ids=str)
def test_pixels_of_tiles_by_shape(tile: int, most: int, mode: str) -> None:
    slicing, reads = Slicing(tile, 0, most > 1, 3, 1, most), internvl_processor(tile, most)
    for i, size in enumerate((*SIZES, (64, 32), (96, 64), (130, 130), (400, 401))):
        data = image_file(mode, size, i)
        given = reads(loaded(data), return_tensors="np")
        raw = reads(loaded(data), do_rescale=False, do_normalize=False, return_tensors="np")
        found = tiles_of(data, slicing)
        assert len(found.pixels) <= slicing.n_most
        check_pixels(found, raw["pixel_values"], given["pixel_values"], tile)


def test_defaults_of_internvl(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    named = {"architectures": ["InternVLForConditionalGeneration"]}
    full = transformers.AutoConfig.for_model("internvl").to_dict() | named
    size = {"height": 448, "width": 448}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": size}))

    def source(config: Mapping[str, object]) -> ModelSource:
        return ModelSource(tmp_path, "hf", "model", config, TensorTable({}))

    said = source({**named, "vision_config": {}})
    tower, slicing = read_tower(said, 64), slicing_of(said)
    assert tower == read_tower(source(full), 64)
    reads = type(internvl_processor(448))
    assert (slicing.least, slicing.most) == (reads.min_patches, reads.max_patches)
    assert slicing.resample == reads.resample
    assert (list(tower.tile.mean), list(tower.tile.std)) == (reads.image_mean, reads.image_std)
    assert full["image_token_id"] == tower_spec(said).image.default
    assert tower.tile.n_tokens == full["image_seq_length"]


def test_ids_of_internvl(tmp_path: Path) -> None:
    """Two images, of which one is a tile, whatever the image processor says of cutting."""
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    folder = tiny_internvl.write(tiny_internvl.internvl(), tmp_path)
    names = ("start_image_token", "end_image_token", "context_image_token")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        extra_special_tokens={
            **dict(zip(names, tiny_internvl.PARTS, strict=True)),
            "video_token": "<video>",
        },
    )

    class Processor(transformers.InternVLProcessor):  # type: ignore[misc, name-defined]
        """Without films, whose processor is made of another package."""

        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            return None if name == "video_processor" else type(argument)

    reads = Processor(
        internvl_processor(tiny_internvl.TILE, tiny_internvl.MOST),
        tokenizer,
        None,
        tiny_internvl.N_TOKENS,
        tiny_internvl.CHAT_TEMPLATE,
    )
    files = [image_file("L", size, 3) for size in ((90, 50), (32, 32))]
    images = [{"type": "image", "image": loaded(file)} for file in files]
    content = [{"type": "text", "text": "see "}, *images, {"type": "text", "text": "what"}]
    given = reads.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
    )
    text = load_text(open_model(folder))
    assert text.sight is not None
    bare = [part if part["type"] == "text" else {"type": "image"} for part in content]
    ids = text.template.encode([{"role": "user", "content": bare}])
    tiles = [tiles_of(file, text.sight.slicing) for file in files]
    assert list(text.sight.placeholders.expand(ids, tiles).ids) == list(given["input_ids"][0])


@pytest.mark.parametrize("executor", ["reference", "cpu"])
@pytest.mark.parametrize(
    "make", [tiny_internvl.internvl, tiny_internvl.internvl_large, tiny_internvl.internvl_qwen3]
)
def test_logits_of_internvl(make: Any, executor: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="make test-oracle")
    from transformers import AutoModelForImageTextToText

    folder = tiny_internvl.write(make(), tmp_path)
    seeing, sight = Seeing.open(folder, "float32", "f32"), load_text(open_model(folder)).sight
    assert sight is not None
    files = [image_file("RGB", (90, 50), 1), image_file("RGB", (32, 32), 2)]
    tiles, image = [tiles_of(file, sight.slicing) for file in files], tiny_internvl.IMAGE
    found = sight.placeholders.expand([2, 9, image, *range(30, 45), image, 7, 8], tiles)
    tile = seeing.model.tower.tile if seeing.model.tower else None
    assert tile is not None
    n = tile.side
    pixels = [
        patches(media, tile)[1:]
        .reshape(n // 2, n // 2, 2, 2, 3, tile.patch, tile.patch)
        .transpose(4, 0, 2, 5, 1, 3, 6)
        .reshape(3, tile.size, tile.size)
        for media in found.media
    ]
    oracle = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        out = oracle(
            input_ids=torch.tensor([found.ids]), pixel_values=torch.tensor(np.array(pixels))
        )
    expected = out.logits[0].numpy()
    own = logits_of(seeing, executor, found.ids, found.media)
    assert np.abs(own - expected).max() <= BOUND * np.abs(expected).max()
