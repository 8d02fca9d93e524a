"""Reads images, in a process that may die of it.

``python -m kvasir.vision.reader HOW MEGABYTES`` (JSON of a ``Preparing``) reads frames, each an
image file in base64, and answers each with a frame. An image that takes more memory ends the
process; one that takes too long is for the reader to end. Ends with its input.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import resource
import sys
from collections.abc import Iterator

import msgspec
from PIL import Image, ImageOps

from kvasir.core.tiles import MAX_TOKENS
from kvasir.vision.messages import (
    Answer,
    Paved,
    Read,
    Tiles,
    Uncut,
    Unreadable,
    framed,
    read_frame,
)
from kvasir.vision.preparing import Bounding, Paving, Preparing, Resizing, Scaling, Slicing
from kvasir.vision.slicing import (
    MAX_SHARE,
    bounded_size,
    first_size,
    fitted_size,
    grid_size,
    paved_rows,
    paved_size,
    scaled_size,
    shape_grid,
)

NICE = 5
"""Steps of the engine go first."""
MAX_PIXELS = 64_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_STILL = ("JPEG", "MPO")
"""Formats whose further images are other views of the first."""


def main(preparing: str, megabytes: int) -> None:
    os.nice(NICE)
    Image.init()
    Image.MAX_IMAGE_PIXELS = None  # what is allowed is asked before anything is decoded
    _limit(megabytes * 2**20)
    how = msgspec.json.decode(preparing, type=Preparing)
    _say(Tiles(0, 0, ()))
    while (data := read_frame(sys.stdin.buffer)) is not None:
        _say(_answer(data, how))


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(framed(msgspec.msgpack.encode(answer)))
    sys.stdout.buffer.flush()


def _answer(data: bytes, how: Preparing) -> Answer:
    try:
        return tiles_of(base64.b64decode(data, validate=True), how)
    except binascii.Error:
        return Unreadable("is no base64")
    except UnfitImage as refusal:
        return Unreadable(str(refusal))
    except MemoryError:
        return Unreadable("takes too much memory to read: shrink it")
    except Exception:  # whatever a decoder makes of it; its own words may hold addresses
        return Unreadable(f"is broken, or no image: send one of {', '.join(FORMATS)}")


class UnfitImage(Exception):
    """In words for who sent the image."""


def tiles_of(data: bytes, how: Preparing) -> Read:
    """Of an image file."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        return tiles_in(image, how)


def tiles_in(image: Image.Image, how: Preparing) -> Read:
    """Of an image, upright and without alpha."""
    _check(image)
    upright = ImageOps.exif_transpose(image) or image
    rgb = upright.convert("RGB")
    if isinstance(how, Paving):
        return pave(rgb, how)
    return cut(rgb, how) if isinstance(how, Slicing) else fitted(rgb, how)


def _check(image: Image.Image) -> None:
    width, height = image.size
    if not 0 < width * height <= MAX_PIXELS:
        raise UnfitImage(f"has {width} x {height} pixels, at most {MAX_PIXELS} are read: shrink it")
    if image.format not in _STILL and getattr(image, "is_animated", False):
        raise UnfitImage("is an animation: send one frame of it")


def cut(image: Image.Image, slicing: Slicing) -> Tiles:
    """Of an RGB image."""
    tile, resample = slicing.tile, Image.Resampling(slicing.resample)
    if slicing.most:
        return _by_shape(image, slicing)
    if slicing.longest:
        image = image.resize(first_size(image.size, slicing.longest), resample)
    if not slicing.splits:
        return Tiles(0, 0, (image.resize((tile, tile), resample).tobytes(),))
    image = image.resize(grid_size(image.size, tile), resample)
    return _with_whole(image, image, tile, resample)


def _by_shape(image: Image.Image, slicing: Slicing) -> Tiles:
    tile, resample = slicing.tile, Image.Resampling(slicing.resample)
    columns, rows = shape_grid(image.size, tile, slicing.least, slicing.most)
    resized = image.resize((columns * tile, rows * tile), resample)
    return _with_whole(resized, image, tile, resample)


def _with_whole(
    image: Image.Image, whole: Image.Image, tile: int, resample: Image.Resampling
) -> Tiles:
    """Tiles of ``image`` and, if there are several, one of the whole."""
    columns, rows = image.width // tile, image.height // tile
    if rows == columns == 1:
        return Tiles(0, 0, (image.tobytes(),))
    whole = whole.resize((tile, tile), resample)
    return Tiles(rows, columns, (*_parts(image, tile), whole.tobytes()))


def pave(image: Image.Image, how: Paving) -> Paved:
    """Of an RGB image, which lies in the middle of its tiles, on black."""
    tile, resample = how.tile, Image.Resampling(how.resample)
    (width, height), inner = paved_size(image.size, how.sizes)
    ground = Image.new("RGB", (width, height))
    ground.paste(image.resize(inner, resample), ((width - inner[0]) // 2, (height - inner[1]) // 2))
    (columns, lines), canvas = paved_rows(image.size, (width // tile, height // tile), how)
    pixels = b"".join(_parts(ground, tile, how.seen))
    whole = image.resize((tile, tile), resample).crop((0, 0, how.seen, how.seen))
    return Paved(lines, columns, canvas, whole.tobytes(), pixels)


def fitted(image: Image.Image, how: Resizing | Bounding | Scaling) -> Uncut:
    """Of an RGB image."""
    width, height = _sizes(image, how)
    lines, columns = height // how.unit, width // how.unit
    if lines * columns > MAX_TOKENS:
        raise UnfitImage(
            f"becomes {lines * columns} tokens, at most {MAX_TOKENS} are computed: shrink it, or "
            f"have the server shrink all such images: {_remedy(how)}"
        )
    image = image.resize((width, height), Image.Resampling(how.resample))
    return Uncut(lines, columns, image.tobytes())


def _sizes(image: Image.Image, how: Resizing | Bounding | Scaling) -> tuple[int, int]:
    if isinstance(how, Scaling):
        return _scaled(image, how)
    return _bounded(image, how) if isinstance(how, Bounding) else _resized(image, how)


def _remedy(how: Resizing | Bounding | Scaling) -> str:
    return f"""--mm-processor-kwargs '{{"max_pixels": {MAX_TOKENS * how.unit**2}}}'"""


def _resized(image: Image.Image, how: Resizing) -> tuple[int, int]:
    if max(image.size) > MAX_SHARE * min(image.size):
        width, height = image.size
        raise UnfitImage(
            f"has {width} x {height} pixels, at most {MAX_SHARE} to 1 are read: cut it"
        )
    return fitted_size(image.size, how)


def _bounded(image: Image.Image, how: Bounding) -> tuple[int, int]:
    found = bounded_size(image.size, how)
    if not min(found):
        width, height = image.size
        raise UnfitImage(
            f"has {width} x {height} pixels, of which nothing is left with {how.longest} at most "
            "on its longer side: cut it"
        )
    return found


def _scaled(image: Image.Image, how: Scaling) -> tuple[int, int]:
    found = scaled_size(image.size, how)
    if not min(found):
        width, height = image.size
        raise UnfitImage(
            f"has {width} x {height} pixels, of which nothing is left in {how.most} tokens: cut it"
        )
    return found


def _parts(image: Image.Image, tile: int, seen: int = 0) -> Iterator[bytes]:
    """``seen``: pixels of a side of each that are taken, if not all."""
    size = seen or tile
    for top in range(0, image.height, tile):
        for left in range(0, image.width, tile):
            yield image.crop((left, top, left + size, top + size)).tobytes()


def _limit(n_bytes: int) -> None:
    """Of address space, beyond what is used now."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + n_bytes, used + n_bytes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
