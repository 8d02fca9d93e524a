"""The images of a request: whether they may be sent, and their tiles."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvasir.core.errors import RequestError
from kvasir.core.tiles import Media
from kvasir.serve.asked import Asked
from kvasir.serve.images import ImageReader
from kvasir.serve.resolved import Ids
from kvasir.tokenizer.messages import ChatMessage, ImagePart
from kvasir.vision.messages import Read
from kvasir.vision.sight import Sight, check_pillow


@dataclass(frozen=True, slots=True)
class SeenPrompt:
    """Ids of a prompt, what some of them stand for, and the image files of that in base64."""

    ids: Ids
    media: tuple[Media, ...] = ()
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """Tiles of every image of a conversation."""

    sight: Sight | None = None
    tiles: Mapping[ImagePart, Read] = field(default_factory=dict)

    async def expand(self, ids: Ids, messages: Sequence[ChatMessage], first: int) -> SeenPrompt:
        """``ids`` of ``messages``, behind ``first`` others, with the tokens of their images. Raises
        RequestError (400)."""
        images = images_of(messages)
        if self.sight is None or not images:
            return SeenPrompt(ids)
        tiles = [self.tiles[image] for image in images]
        # In a thread: the pixels of an image are hashed, which takes 15 ms for 13 MB.
        found = await asyncio.to_thread(self.sight.placeholders.expand, ids, tiles, first)
        return SeenPrompt(found.ids, found.media, tuple(image.data for image in images))


NOTHING_SEEN = Seen()


def images_of(messages: Sequence[ChatMessage]) -> list[ImagePart]:
    """In their order."""
    return [image for message in messages for image in message.images]


async def see(
    asked: Asked, sight: Sight | None, reader: ImageReader, most: int, owner: str
) -> Seen:
    """``most``: images of one request. Raises RequestError (400), CapacityError (429), ImagesUnread
    (503)."""
    images = images_of(asked.messages)
    if not images:
        return NOTHING_SEEN
    if sight is None:
        raise RequestError(
            "this model reads no images: leave them out, or serve a model that does",
            param=images[0].where,
            code="unsupported_parameter",
        )
    _check(asked, images, most)
    if (left := next((x for x in images if x.address), None)) is not None:
        raise RequestError(f"{left.where} must be a data URI here", param=left.where)
    check_pillow()
    tiles = await reader.read(images, sight.slicing, owner)
    return Seen(sight, dict(zip(images, tiles, strict=True)))


def _check(asked: Asked, images: Sequence[ImagePart], most: int) -> None:
    check_count(images, most)
    if asked.params.truncate_prompt_tokens is not None:
        raise RequestError(
            "images do not go together with truncate_prompt_tokens: leave one out",
            param=images[0].where,
        )


def check_count(images: Sequence[ImagePart], most: int) -> None:
    """Raises RequestError (400) for more than ``most``."""
    if len(images) > most:
        raise RequestError(
            f"the messages have {len(images)} images, this server takes {most}: send fewer, or "
            "raise --limit-mm-per-prompt",
            param=images[most].where,
        )
