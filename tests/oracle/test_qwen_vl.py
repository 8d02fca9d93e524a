"""Images of any size against ``transformers``, live: pixels of Qwen's Pillow processor to the bit,
positions of patches and of tokens, and logits in float32."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.checkpoints.tower import read_tower
from kvasir.core.tiles import Media, TileSpec, media_at
from kvasir.exec.rope_positions import rope_positions
from kvasir.exec.tiles import between_positions, patches
from kvasir.formats.mapped import TensorTable
from kvasir.serve.text import load_text
from kvasir.vision.messages import Uncut
from kvasir.vision.preparing import Resizing
from kvasir.vision.processor import slicing_of
from kvasir.vision.reader import tiles_of
from kvasir.vision.slicing import fitted_size
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_qwen_vl
from tests.e2e.harness import running_server
from tests.e2e.test_images import chat, file_of, text, words
from tests.e2e.test_qwen_vl import image
from tests.oracle.test_images import BOUND, MODES, image_file, loaded, logits_of
from tests.seeing import Seeing
from tests.tiny import TinyModel

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SIZES = ((1, 1), (3, 500), (200, 2), (160, 120), (83, 177), (64, 64), (65, 64), (300, 290))
WAYS = (Resizing(8, 128, 1920, 3), Resizing(28, 56**2, 20 * 28**2, 3), Resizing(32, 4096, 65536, 2))
ENGINE = {"max_model_len": 512, "dtype": "float32"}
MEAN, STD = (0.5, 0.4, 0.6), (0.5, 0.3, 0.7)
MODELS: dict[str, Callable[[], TinyModel]] = {
    "qwen3_vl": tiny_qwen_vl.qwen3_vl,
    "qwen3_vl_moe": tiny_qwen_vl.qwen3_vl_moe,
    "qwen3_5_vl": tiny_qwen_vl.qwen3_5_vl,
    "qwen2_5_vl": tiny_qwen_vl.qwen2_5_vl,
    "qwen2_vl": tiny_qwen_vl.qwen2_vl,
}


def qwen(name: str) -> Any:
    return pytest.importorskip(f"transformers.models.qwen2_vl.{name}", reason="make test-oracle")


def processor(way: Resizing) -> Any:
    return qwen("image_processing_pil_qwen2_vl").Qwen2VLImageProcessorPil(
        size={"shortest_edge": way.least, "longest_edge": way.most},
        patch_size=way.unit // 2,
        resample=way.resample,
        image_mean=list(MEAN),
        image_std=list(STD),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS, ids=lambda x: f"{x.unit}-{x.most}")
def test_pixels(way: Resizing, mode: str) -> None:
    reads, spec = processor(way), TileSpec(0, way.unit // 2, 2, 1 / 255, MEAN, STD, 2)
    for i, size in enumerate(SIZES):
        data = image_file(mode, size, i)
        if max(size) > 200 * min(size):
            continue
        found = tiles_of(data, way)
        assert isinstance(found, Uncut)
        given = reads(loaded(data), return_tensors="np")
        assert given["image_grid_thw"].tolist() == [[1, 2 * found.lines, 2 * found.columns]]
        own = patches(media_of(found), spec)
        assert (own == given["pixel_values"]).all(), (
            size,
            np.abs(own - given["pixel_values"]).max(),
        )


def media_of(image: Uncut, start: int = 0) -> Media:
    return media_at(start, image.lines * image.columns, image.pixels, image.columns)


def test_sizes() -> None:
    """Of any image."""
    expected = qwen("image_processing_pil_qwen2_vl").smart_resize
    rng = np.random.default_rng(3)
    for _ in range(5000):
        height, width = (int(x) for x in np.exp(rng.uniform(0, np.log(9000), 2)) + 0.5)
        if max(height, width) > 200 * min(height, width):
            continue
        for way in WAYS:
            found = fitted_size((width, height), way)
            known = expected(height, width, way.unit, min_pixels=way.least, max_pixels=way.most)
            assert found == known[::-1], (height, width, way)


@pytest.mark.parametrize("name", MODELS)
def test_positions_of_tokens(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="make test-oracle")
    model = oracle_of(tiny_qwen_vl.write(MODELS[name](), tmp_path))
    rng = np.random.default_rng(5)
    for _ in range(50):
        ids, media, grids = some_prompt(rng)
        found = rope_positions(np.arange(len(ids)), media)
        given = {"image_grid_thw": torch.tensor(grids)} if grids else {}
        ids_, more = torch.tensor([ids]), types_of(model.model.get_rope_index, ids)
        places, delta = model.model.get_rope_index(ids_, **given, **more)
        assert (found == places[:, 0].T.numpy()).all()
        behind = rope_positions(np.array([len(ids) + 3]), media)
        assert (behind == len(ids) + 3 + int(delta)).all()


def some_prompt(rng: np.random.Generator) -> tuple[list[int], list[Media], list[list[int]]]:
    """Ids, images and their grids of patches: images beside each other, first and last, too."""
    image = tiny_qwen_vl.IMAGE
    ids: list[int] = []
    media: list[Media] = []
    for _ in range(rng.integers(0, 4)):
        ids += [9] * int(rng.integers(0, 5)) + [image + 2]
        lines, columns = (int(x) for x in rng.integers(1, 7, 2))
        media.append(media_at(len(ids), lines * columns, b"", columns))
        ids += [image] * (lines * columns) + [image + 3]
    ids += [7] * int(rng.integers(1, 5))
    return ids, media, [[1, 2 * line, 2 * column] for line, column in (x.grid for x in media)]


def types_of(function: Any, ids: Sequence[int]) -> dict[str, Any]:
    """Newer releases are told which tokens are of images."""
    import torch

    if "mm_token_type_ids" not in signature(function).parameters:
        return {}
    return {"mm_token_type_ids": torch.tensor([[int(x == tiny_qwen_vl.IMAGE) for x in ids]])}


def oracle_of(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.mark.parametrize("executor", ["reference", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, executor: str, tmp_path: Path) -> None:
    """A prompt with two images of other shapes, and without any."""
    torch = pytest.importorskip("torch", reason="make test-oracle")
    folder = tiny_qwen_vl.write(MODELS[name](), tmp_path)
    seeing, sight = Seeing.open(folder, "float32", "f32"), load_text(open_model(folder)).sight
    assert sight is not None
    way, image = sight.slicing, tiny_qwen_vl.IMAGE
    assert isinstance(way, Resizing)
    files = [image_file("RGB", (50, 21), 1), image_file("RGB", (30, 33), 2)]
    read = [tiles_of(file, way) for file in files]
    model, reads = oracle_of(folder), processor(way)
    pictured = sight.placeholders.expand([2, 9, image, 30, 31, image, 7, 8, 5], read)
    plain = sight.placeholders.expand(list(range(3, 40)), [])
    for found in (pictured, plain):
        more: dict[str, Any] = types_of(model.forward, found.ids)
        if found.media:
            more |= reads([loaded(file) for file in files], return_tensors="pt")
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([found.ids]), **more).logits[0].numpy()
        own = logits_of(seeing, executor, found.ids, found.media)
        assert np.abs(own - expected).max() <= BOUND * np.abs(expected).max()


@pytest.mark.parametrize("grid", [(2, 2), (4, 6), (10, 4), (2, 30), (48, 48)])
@pytest.mark.parametrize("side", [5, 48])
def test_places_between_positions(grid: tuple[int, int], side: int) -> None:
    """Of a grid whose corners are those of the table. Where a patch is on a position the row behind
    it has no share, whichever it is."""
    torch = pytest.importorskip("torch", reason="make test-oracle")
    module = pytest.importorskip("transformers.vision_utils", reason="make test-oracle")
    places = module.get_vision_interpolation_indices_and_weights
    given = torch.tensor([[1, *grid]])
    at, of = places(given, side, align_corners=True, spatial_merge_size=2)
    table = np.random.default_rng(1).normal(size=(side**2, 8)).astype(np.float32)
    expected = (table[at.numpy()] * of.numpy()[:, :, None]).sum(axis=1)
    corners, shares = between_positions(grid, side, 2)
    found = (table[corners] * shares[:, :, None]).sum(axis=1)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
        ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
        ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
        ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
        ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
    ],
)
def test_defaults(kind: str, architecture: str, tmp_path: Path) -> None:
    """What holds of a tower and a processor that say nothing."""
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    full = transformers.AutoConfig.for_model(kind).to_dict()
    names = {"architectures": [architecture]}
    patch = {"patch_size": full["vision_config"]["patch_size"]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(patch))

    def source(vision: object) -> ModelSource:
        config = {**names, "vision_config": vision}
        return ModelSource(tmp_path, "hf", "model", config, TensorTable({}))

    assert read_tower(source({}), 0) == read_tower(source(full["vision_config"]), 0)
    reads = qwen("image_processing_pil_qwen2_vl").Qwen2VLImageProcessorPil(**patch)
    way = slicing_of(source({}))
    assert isinstance(way, Resizing)
    assert (way.least, way.most) == (reads.size["shortest_edge"], reads.size["longest_edge"])
    assert (way.unit, way.resample) == (reads.patch_size * reads.merge_size, reads.resample)
    tile = read_tower(source({}), 0).tile
    assert (list(tile.mean), list(tile.std)) == (list(reads.image_mean), list(reads.image_std))


@pytest.mark.parametrize("name", MODELS)
def test_a_server_answers_as_transformers(name: str, tmp_path: Path) -> None:
    """From a chat over HTTP to text, with two images of other shapes; greedy."""
    torch = pytest.importorskip("torch", reason="make test-oracle")
    folder = tiny_qwen_vl.write(MODELS[name](), tmp_path)
    parts = [image(1, 40, 17), text("what is it?"), image(2, 9, 30)]
    with running_server(folder, executor="cpu", engine=ENGINE) as server:
        body = chat(*parts, max_tokens=16, ignore_eos=True)
        ids = server.post("/v1/chat/completions/render", body).json()["prompt_token_ids"][0]
        said = server.post("/v1/chat/completions", body).json()
    model, text_model = oracle_of(folder), load_text(open_model(folder))
    assert text_model.sight is not None and isinstance(text_model.sight.slicing, Resizing)
    reads = processor(text_model.sight.slicing)
    files = [base64.b64decode(file_of(1, (40, 17))), base64.b64decode(file_of(2, (9, 30)))]
    more, told = reads([loaded(file) for file in files], return_tensors="pt"), list(ids)
    for _ in range(16):  # ``generate`` of Qwen3.5 has other tokens than its own forward pass
        with torch.no_grad():
            out = model(input_ids=torch.tensor([told]), **more, **types_of(model.forward, told))
        told.append(int(out.logits[0, -1].argmax()))
    answer = text_model.tokenizer.decode(told[len(ids) :])
    assert words(said) == answer
