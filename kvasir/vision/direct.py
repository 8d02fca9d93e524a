"""Images that a program gives its own model: read in its process, where a server has one of its
own for them."""

from __future__ import annotations

import base64
import binascii
from os import PathLike
from pathlib import Path

from PIL import Image

from kvasir.core.errors import RequestError
from kvasir.vision.messages import Read
from kvasir.vision.preparing import Preparing
from kvasir.vision.reader import FORMATS, UnfitImage, tiles_in, tiles_of


def read_image(given: object, how: Preparing, where: str) -> Read:
    """Of an image of Pillow's, a path, or a file in base64. Raises RequestError (400)."""
    own = given if isinstance(given, Image.Image) else None
    data = b"" if own is not None else _file(given, where)
    try:
        return tiles_of(data, how) if own is None else tiles_in(own, how)
    except UnfitImage as refusal:
        raise RequestError(f"{where} {refusal}", param=where) from None
    except Exception:  # whatever a decoder makes of a broken file
        said = f"{where} is broken, or no image: give one of {', '.join(FORMATS)}"
        raise RequestError(said, param=where) from None


def _file(given: object, where: str) -> bytes:
    if isinstance(given, str):
        try:
            return base64.b64decode(given, validate=True)
        except binascii.Error:
            raise RequestError(f"{where} is no base64", param=where) from None
    if not isinstance(given, PathLike):
        raise RequestError(
            f"{where} is of type {type(given).__name__}: give an image of Pillow's, or a path",
            param=where,
        )
    try:
        return Path(given).read_bytes()
    except OSError as error:
        raise RequestError(f"{where}: {given}: {error.strerror}", param=where) from None
