"""How large images may become, where somebody says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kvasir import LLM
from kvasir.config.pixels import PixelBounds, pixel_bounds
from kvasir.core.errors import ConfigError
from kvasir.core.tiles import MAX_TOKENS
from kvasir.offline.arguments import split
from kvasir.serve.text import load_text
from kvasir.vision.preparing import Bounding, Resizing, Slicing
from kvasir.vision.reader import UnfitImage, fitted
from kvasir.vision.slicing import fitted_size, within
from kvasir.weights.source import open_model
from tests import tiny, tiny_qwen_vl, tiny_vision

HOW = Resizing(32, 65536, 16_777_216, 3)
SMALL: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 2, "threads": 1}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, None),
        ('{"max_pixels": 1000}', PixelBounds(None, 1000)),
        ('{"min_pixels": 5, "max_pixels": 5}', PixelBounds(5, 5)),
    ],
)
def test_what_is_said(said: str | None, expected: PixelBounds | None) -> None:
    assert pixel_bounds(said) == expected


@pytest.mark.parametrize(
    "said",
    [
        *("", "[]", "{}", '"max_pixels"', '{"max_pixels": 0}', '{"max_pixels": true}'),
        *('{"max_pixels": 1.5}', '{"fps": 2}', '{"min_pixels": 9, "max_pixels": 8}', "[" * 5000),
    ],
)
def test_what_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match="mm_processor_kwargs"):
        pixel_bounds(said)


def test_bounds_in_place_of_the_processors() -> None:
    assert within(HOW, PixelBounds(None, 100_000)) == Resizing(32, 65536, 100_000, 3)
    assert within(HOW, PixelBounds(9, 99)) == Resizing(32, 9, 99, 3)
    with pytest.raises(ConfigError, match="at least 65536 pixels and at most 100"):
        within(HOW, PixelBounds(None, 100))
    most = MAX_TOKENS * HOW.unit**2
    assert within(HOW, PixelBounds(most, 1 << 32)) == Resizing(32, most, 1 << 32, 3)
    with pytest.raises(ConfigError, match=f"min_pixels may be up to {most}"):
        within(HOW, PixelBounds(most + 1, 1 << 32))
    for other in (Slicing(32, 64, True, 1), Bounding(8, 48, 3)):
        with pytest.raises(ConfigError, match="sizes of its own"):
            within(other, PixelBounds(None, 100_000))


def test_the_remedy_holds() -> None:
    """An image that is refused as too large says what would have it shrunk."""
    image = Image.new("RGB", (4100, 2100))
    with pytest.raises(UnfitImage, match=r"at most 4096 are computed: .*\"max_pixels\": 4194304"):
        fitted(image, HOW)
    rng = np.random.default_rng(4)
    how = within(HOW, PixelBounds(None, MAX_TOKENS * 32**2))
    assert isinstance(how, Resizing)
    for _ in range(2000):
        width, height = (int(x) for x in rng.integers(400, 8000, 2))
        columns, lines = (x // 32 for x in fitted_size((width, height), how))
        assert lines * columns <= MAX_TOKENS


def test_a_model_keeps_to_them(tmp_path: Path) -> None:
    folder = tiny_qwen_vl.write(tiny_qwen_vl.qwen3_vl(), tmp_path)
    said = {"max_pixels": 6 * tiny_qwen_vl.UNIT**2}
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (50, 90, 3), np.uint8))
    prompt = {"prompt": "<|vision_start|><|image_pad|><|vision_end|>what?"}
    counts = []
    for more in ({}, {"mm_processor_kwargs": said}):
        with LLM(str(folder), dtype="float32", **SMALL, **more) as llm:
            (found,) = llm.generate({**prompt, "multi_modal_data": {"image": image}})
            counts.append(list(found.prompt_token_ids).count(tiny_qwen_vl.IMAGE))
    assert counts[1] <= 6 < counts[0]


def test_who_cannot_keep_to_them_says_so(tmp_path: Path) -> None:
    bounds = PixelBounds(None, 100_000)
    cut = open_model(tiny_vision.write(tiny_vision.smolvlm(), tmp_path / "cut"))
    blind = open_model(tiny.write_hf(tiny.llama(), tmp_path / "blind"))
    tiny.tokenizer().save(str(tmp_path / "blind" / "tokenizer.json"))
    for source, why in ((cut, "sizes of its own"), (blind, "reads no images")):
        with pytest.raises(ConfigError, match=why):
            load_text(source, bounds)


def test_a_mapping_is_json() -> None:
    options, warnings = split("m", {"mm_processor_kwargs": {"max_pixels": 7}})
    assert (options.mm_processor_kwargs, warnings) == ('{"max_pixels": 7}', ())
