"""What was kept of a request, made whole again for who computes it: the same, to the pixel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from kvasir.core.errors import RequestError
from kvasir.core.tiles import Media, media_at
from kvasir.serve.images import ImageReader
from kvasir.serve.resolved import Resolved
from kvasir.serve.service import Model, Service
from kvasir.serve.state.kept import Kept, ModelChanged
from kvasir.serve.text import TextModel
from kvasir.tokenizer.messages import ImagePart
from kvasir.vision.sight import Sight


@dataclass(frozen=True, slots=True)
class Reopened:
    resolved: Resolved
    model: Model
    text: TextModel


async def reopened(service: Service, kept: Kept) -> Reopened:
    """Raises RequestError (404) where its model is gone, ModelChanged (409) where it answers
    otherwise, EngineDown, Unavailable (503), CapacityError (429)."""
    model = service.check_model(kept.resolved.model)
    text, info = await model.open()
    kept.check(info)
    return Reopened(await with_pixels(kept.resolved, text.sight, model.images), model, text)


async def with_pixels(resolved: Resolved, sight: Sight | None, reader: ImageReader) -> Resolved:
    """``resolved`` with the pixels of its images, which are not kept: they are read again. Raises
    ModelChanged (409) where they are not those that they were, ImagesUnread (503), CapacityError
    (429)."""
    media = resolved.job.media
    if all(x.pixels for x in media):
        return resolved
    if sight is None:
        raise _other_pixels()
    images = [ImagePart(data, f"image {i}") for i, data in enumerate(resolved.images)]
    try:
        tiles = await reader.read(images, sight.slicing, resolved.job.standing.tenant)
    except RequestError:
        raise _other_pixels() from None
    pixels = [each for one in tiles for each in one.parts]
    found = await asyncio.to_thread(_filled, media, pixels)
    return structs.replace(resolved, job=structs.replace(resolved.job, media=found))


def _filled(media: Sequence[Media], pixels: Sequence[bytes]) -> tuple[Media, ...]:
    """Raises ModelChanged (409)."""
    if len(media) != len(pixels):
        raise _other_pixels()
    found = tuple(
        media_at(x.start, x.n_tokens, y, x.columns, x.breaks, x.canvas)
        for x, y in zip(media, pixels, strict=True)
    )
    if any(old.digest != new.digest for old, new in zip(media, found, strict=True)):
        raise _other_pixels()
    return found


def _other_pixels() -> ModelChanged:
    return ModelChanged("its images are read otherwise now, by another Pillow: ask for it again")
