"""Images against ``transformers``, live: pixels of its Pillow processor to the bit, positions,
tokens, and logits in float32."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kvasir.checkpoints.tower import read_tower
from kvasir.core.plan import SlotOpen
from kvasir.core.tiles import TileSpec, media_at
from kvasir.exec.tiles import patches
from kvasir.formats.mapped import TensorTable
from kvasir.models.tower_programs import positions
from kvasir.serve.text import load_text
from kvasir.vision.messages import Tiles
from kvasir.vision.placeholders import written
from kvasir.vision.preparing import Slicing
from kvasir.vision.processor import slicing_of
from kvasir.vision.reader import tiles_of
from kvasir.weights.source import ModelSource, open_model
from tests import tiny_vision
from tests.loading import GREEDY, sizes_for
from tests.planned import placed, step_plan
from tests.seeing import Seeing

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

BOUND = 1e-4
MODES = ("RGB", "RGBA", "L", "P", "LA", "1", "I;16", "CMYK")
SIZES = ((1, 1), (3, 500), (200, 2), (160, 120), (83, 177), (64, 64), (65, 64))
SLICINGS = (Slicing(64, 128, True, 1), Slicing(100, 200, False, 3), Slicing(64, 64, True, 1))


def image_file(mode: str, size: tuple[int, int], seed: int) -> bytes:
    """Random pixels; JPEG and RGB files say how they were turned."""
    rng, (width, height) = np.random.default_rng(seed), size
    image = Image.fromarray(rng.integers(0, 256, (height, width, 4), dtype=np.uint8), "RGBA")
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, (height, width), dtype=np.uint16))
    elif mode == "P":
        image = image.convert("RGB").quantize(16)
    elif mode == "CMYK":
        image = image.convert("RGB").convert(mode)
    else:
        image = image.convert(mode)
    more: dict[str, Any] = {}
    if mode in ("RGB", "CMYK"):
        more["exif"] = Image.Exif()
        more["exif"][0x112] = random.Random(seed).randint(1, 8)
    file = io.BytesIO()
    image.save(file, "JPEG" if mode == "CMYK" else "PNG", **more)
    return file.getvalue()


def processor(slicing: Slicing) -> Any:
    module = pytest.importorskip(
        "transformers.models.smolvlm.image_processing_pil_smolvlm", reason="make test-oracle"
    )
    return module.SmolVLMImageProcessorPil(
        size={"longest_edge": slicing.longest},
        max_image_size={"longest_edge": slicing.tile},
        do_image_splitting=slicing.splits,
        resample=slicing.resample,
        image_mean=[0.5, 0.4, 0.6],
        image_std=[0.5, 0.3, 0.7],
    )


def loaded(data: bytes) -> Any:
    """As the processor is given what a data URI holds."""
    from transformers.image_utils import load_image

    return load_image("data:image/png;base64," + base64.b64encode(data).decode())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slicing", SLICINGS, ids=lambda x: f"{x.longest}-{x.tile}-{x.splits}")
def test_pixels(slicing: Slicing, mode: str) -> None:
    reads = processor(slicing)
    for i, size in enumerate(SIZES):
        data = image_file(mode, size, i)
        found = tiles_of(data, slicing)
        assert isinstance(found, Tiles)
        given = reads(loaded(data), return_row_col_info=True, return_tensors="np")
        raw = reads(loaded(data), do_rescale=False, do_normalize=False, return_tensors="np")
        assert (found.rows, found.columns) == (given["rows"][0][0], given["cols"][0][0])
        check_pixels(found, raw["pixel_values"][0], given["pixel_values"][0], slicing.tile)


def check_pixels(found: Tiles, raw: Sequence[Any], normalized: Sequence[Any], tile: int) -> None:
    assert len(found.pixels) == len(raw)
    spec, n = TileSpec(tile, 4, 1, 1 / 255, (0.5, 0.4, 0.6), (0.5, 0.3, 0.7)), tile // 4
    for pixels, levels, values in zip(found.pixels, raw, normalized, strict=True):
        mine = np.frombuffer(pixels, np.uint8).reshape(tile, tile, 3)
        assert (mine.transpose(2, 0, 1) == levels).all()
        own = patches(media_at(0, spec.n_tokens, pixels), spec)
        own = own.reshape(n, n, 3, 4, 4).transpose(2, 0, 3, 1, 4)
        assert (own.reshape(3, tile, tile) == values).all()


@pytest.mark.parametrize(("trained", "side"), [(32, 32), (27, 27), (26, 26), (14, 28), (7, 16)])
def test_positions(trained: int, side: int) -> None:
    """Of released models, and of tiles of another size than the table."""
    torch = pytest.importorskip("torch", reason="make test-oracle")
    inner = torch.arange(1 / trained, 1.0, 1 / trained)
    begins = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor([side]))
    at = torch.bucketize(torch.clamp(begins, max=1.0 - 1e-6), inner, right=True)
    expected = (at[:, None] * trained + at[None, :]).reshape(-1).numpy()
    spec = TileSpec(side, 1, 1, 1.0, (0.0,) * 3, (1.0,) * 3)
    assert (positions(spec, trained) == expected).all()


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (1, 1), (2, 3)])
def test_what_is_written_of_an_image(rows: int, columns: int) -> None:
    module = pytest.importorskip(
        "transformers.models.smolvlm.processing_smolvlm", reason="make test-oracle"
    )
    names = "<fake_token_around_image>", "<image>", "<global-img>"
    expected = module.get_image_prompt_string(rows, columns, 5, *names)
    assert written(rows, columns, 5) == expected


@pytest.mark.parametrize("kind", ["smolvlm", "idefics3"])
def test_defaults(kind: str, tmp_path: Path) -> None:
    """What holds of a tower and a processor that say nothing."""
    transformers = pytest.importorskip("transformers", reason="make test-oracle")
    full = transformers.AutoConfig.for_model(kind).to_dict()
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}')

    def source(config: Mapping[str, object]) -> ModelSource:
        return ModelSource(tmp_path, "hf", "model", config, TensorTable({}))

    fitting = {"patch_size": 14}  # of the classes' own no tiles of 364 are made
    full["vision_config"] |= fitting
    full["architectures"] = named = ["Idefics3ForConditionalGeneration"]
    said = {"architectures": named, "vision_config": fitting}
    tower = read_tower(source(said), 64)
    assert tower == read_tower(source(full), 64)
    reads = transformers.models.smolvlm.image_processing_pil_smolvlm.SmolVLMImageProcessorPil()
    slicing = slicing_of(source(said))
    assert isinstance(slicing, Slicing)
    assert slicing.longest == reads.size["longest_edge"]
    assert slicing.tile == reads.max_image_size["longest_edge"]
    assert (slicing.splits, slicing.resample) == (reads.do_image_splitting, reads.resample)
    assert list(tower.tile.mean) == list(reads.image_mean)


@pytest.mark.parametrize("executor", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("patch", "trained", "tile", "hidden"),
    [(8, 32, 32, 32), (8, 64, 32, 32), (14, 28, 56, 32), (8, 32, 32, 48)],
    ids=str,
)
def test_logits(
    executor: str, patch: int, trained: int, tile: int, hidden: int, tmp_path: Path
) -> None:
    """A prompt with two images, of which one is a tile. Of 48 numbers heads have 24, which are
    padded to 32."""
    torch = pytest.importorskip("torch", reason="make test-oracle")
    from transformers import AutoModelForImageTextToText

    model = tiny_vision.smolvlm(patch, trained, hidden)
    size = {"size": {"longest_edge": 2 * tile}, "max_image_size": {"longest_edge": tile}}
    folder = tiny_vision.write(model, tmp_path, n_tokens=(tile // patch // 2) ** 2, **size)
    seeing = Seeing.open(folder, "float32", "f32")
    sight = load_text(open_model(folder)).sight
    assert sight is not None
    slicing = sight.slicing
    assert isinstance(slicing, Slicing)
    files = [image_file("RGB", (90, 50), 1), image_file("RGB", (tile, tile), 2)]
    tiles = [tiles_of(file, slicing) for file in files]
    image = tiny_vision.IMAGE
    found = sight.placeholders.expand([2, 9, image, 30, 31, image, 7, 8], tiles)
    reads = processor(slicing)
    given = reads([[loaded(file) for file in files]], return_tensors="pt")
    oracle = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        pixels = given["pixel_values"], given["pixel_attention_mask"]
        out = oracle(
            input_ids=torch.tensor([found.ids]),
            pixel_values=pixels[0],
            pixel_attention_mask=pixels[1],
        )
    expected = out.logits[0].numpy()
    own = logits_of(seeing, executor, found.ids, found.media)
    assert np.abs(own - expected).max() <= BOUND * np.abs(expected).max()


def logits_of(seeing: Seeing, executor: str, ids: Sequence[int], media: Any) -> Any:
    n = len(ids)
    sizes = sizes_for(seeing.model.config, n_seqs=1, max_len=-(-n // 16) * 16)
    blocks = tuple(range(-(-n // 16)))
    row = placed(0, 0, tuple(ids), (blocks,) * len(sizes.groups), n_logits=n)
    plan = step_plan(0, [row], (SlotOpen(0, GREEDY, tuple(ids), media=tuple(media)),))
    if executor == "reference":
        return seeing.reference(sizes).trace(plan)[seeing.bundle.target.outputs[0]]
    logits = np.zeros((n, sizes.vocab_size), np.float32)
    made = seeing.cpu(sizes, threads=2)
    made.run(plan, logits=logits)
    made.close()
    return logits
