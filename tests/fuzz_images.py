"""Mutated image files, each from a seed, as the process that reads images reads them: tiles or one
clear line; and another image has the same tiles after each of them."""

from __future__ import annotations

import base64
import io
import random
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from kvasir.vision.messages import Tiles
from kvasir.vision.preparing import Slicing
from kvasir.vision.reader import _answer

SLICING = Slicing(32, 64, True, 1)
SIZES = ((7, 5), (40, 33), (200, 3), (90, 120))
FORMS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MODES = {
    "PNG": ("RGB", "RGBA", "L", "P", "1", "I;16"),
    "JPEG": ("RGB", "L", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P", "L"),
    "BMP": ("RGB", "L", "1"),
}
BORDERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
MOST_WORDS = 160
"""Characters of a refusal."""


def run_case(seed: int, folder: Path) -> str:
    """One file. ``folder``: of cases that write files."""
    warnings.simplefilter("ignore")  # as in the process, where they are lines of the log
    Image.MAX_IMAGE_PIXELS = None
    draw = random.Random(seed)
    found = _answer(base64.b64encode(mutated(written(draw), draw)), SLICING)
    assert _answer(base64.b64encode(canary()[0]), SLICING) == canary()[1]
    if isinstance(found, Tiles):
        assert len(found.pixels) == found.rows * found.columns + 1 <= SLICING.n_most
        assert {len(pixels) for pixels in found.pixels} == {3 * SLICING.tile**2}
        return "answered"
    said = found.message
    assert said and len(said) <= MOST_WORDS and "\n" not in said, said
    assert "0x" not in said and "object at" not in said and "Error" not in said, said
    return "refused"


@cache
def canary() -> tuple[bytes, object]:
    data = written(random.Random(1))
    return data, _answer(base64.b64encode(data), SLICING)


def written(draw: random.Random) -> bytes:
    """An image file; some are interlaced, progressive, lossless, turned, or have many frames."""
    form, (width, height) = draw.choice(FORMS), draw.choice(SIZES)
    mode = draw.choice(MODES[form])
    image = Image.frombytes("RGB", (width, height), draw.randbytes(3 * width * height))
    image = Image.new(mode, (width, height), 7) if mode == "I;16" else image.convert(mode)
    more: dict[str, Any] = {}
    if form == "JPEG":
        more = {"progressive": draw.random() < 0.5, "quality": draw.choice((5, 75, 100))}
    if form == "WEBP":
        more = {"lossless": draw.random() < 0.5}
    if form in ("PNG", "GIF", "WEBP") and mode != "I;16" and draw.random() < 0.2:
        more |= {"save_all": True, "append_images": [image.rotate(90)] * 2}
    if form in ("PNG", "JPEG", "WEBP") and draw.random() < 0.5:
        more["exif"] = Image.Exif()
        more["exif"][0x112] = draw.randint(0, 9)
    file = io.BytesIO()
    image.save(file, form, **more)
    return file.getvalue()


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Half of the changes are near the beginning, where sizes are."""
    found = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        if not found:
            break
        at = draw.randrange(min(64, len(found)) if draw.random() < 0.5 else len(found))
        kind = draw.randrange(6)
        if kind == 0:
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            size = draw.choice((1, 2, 4))
            value = draw.choice(BORDERS) & (256**size - 1)
            found[at : at + size] = value.to_bytes(size, draw.choice(("big", "little")))
        elif kind == 2:
            del found[at : at + draw.randint(1, 40)]
        elif kind == 3:
            found[at:at] = found[: draw.randint(1, 80)]
        elif kind == 4:
            found[at : at + 16] = draw.randbytes(16)
        else:
            del found[at:]
    return bytes(found)
