"""A thousand images, to 40 million pixels, against the Pillow processor of ``transformers``, to the
bit: ``KVASIR_LONG=1 make test-oracle``; else thirty smaller ones."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvasir.vision.messages import Tiles
from kvasir.vision.preparing import Slicing
from kvasir.vision.reader import tiles_of
from tests.forms import n_of
from tests.oracle.test_images import MODES, SLICINGS, image_file, loaded, processor

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

KINDS = (*SLICINGS, Slicing(512, 2048, True, 1), Slicing(364, 1456, True, 1))


def drawn(draw: random.Random, most: int) -> tuple[int, int]:
    """A size of at most ``most`` pixels, as often small as large."""
    width = int(2 ** draw.uniform(0, 13))
    return width, max(1, min(int(2 ** draw.uniform(0, 13)), most // width))


@pytest.mark.parametrize("part", range(10))
def test_pixels_of_many_images(part: int) -> None:
    for i in range(n_of(3, 100)):
        draw = random.Random(1000 * part + i)
        mode, slicing = draw.choice(MODES), draw.choice(KINDS)
        data = image_file(mode, drawn(draw, n_of(10**6, 4 * 10**7)), i)
        found, image = tiles_of(data, slicing), loaded(data)
        raw = processor(slicing)(image, do_rescale=False, do_normalize=False, return_tensors="np")
        levels = raw["pixel_values"][0].transpose(0, 2, 3, 1)
        assert isinstance(found, Tiles)
        assert found.pixels == tuple(x.astype(np.uint8).tobytes() for x in levels), (mode, slicing)
