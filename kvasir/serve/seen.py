"""The images of a request: whether they may be sent, and their tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvasir.core.errors import RequestError
from kvasir.serve.asked import Asked
from kvasir.serve.images import ImageReader
from kvasir.serve.resolved import Ids
from kvasir.serve.sight import Sight, check_pillow
from kvasir.tokenizer.messages import ChatMessage, ImagePart
from kvasir.vision.messages import Read
from kvasir.vision.placeholders import Expanded


@dataclass(frozen=True, slots=True)
class Seen:
    """Tiles of every image of a conversation, by the field that has it."""

    sight: Sight | None = None
    tiles: Mapping[str, Read] = field(default_factory=dict)

    def expand(self, ids: Ids, messages: Sequence[ChatMessage], first: int) -> Expanded:
        """``ids`` of ``messages``, behind ``first`` others, with the tokens of their images. Raises
        RequestError (400)."""
        images = [self.tiles[image.where] for message in messages for image in message.images]
        if self.sight is None or not images:
            return Expanded(ids)
        return self.sight.placeholders.expand(ids, images, first)


NOTHING_SEEN = Seen()


async def see(
    asked: Asked, sight: Sight | None, reader: ImageReader, most: int, owner: str
) -> Seen:
    """``most``: images of one request. Raises RequestError (400), CapacityError (429)."""
    images = [image for message in asked.messages for image in message.images]
    if not images:
        return NOTHING_SEEN
    if sight is None:
        raise RequestError(
            "this model reads no images: leave them out, or serve a model that does",
            param=images[0].where,
            code="unsupported_parameter",
        )
    _check(asked, images, most)
    check_pillow()
    tiles = await reader.read(images, sight.slicing, owner)
    return Seen(sight, {x.where: each for x, each in zip(images, tiles, strict=True)})


def _check(asked: Asked, images: Sequence[ImagePart], most: int) -> None:
    if len(images) > most:
        raise RequestError(
            f"the messages have {len(images)} images, this server takes {most}: send fewer, or "
            "raise --limit-mm-per-prompt",
            param=images[most].where,
        )
    keep = asked.keep
    others = {
        "truncate_prompt_tokens": asked.params.truncate_prompt_tokens is not None,
        "use_beam_search": asked.length_penalty is not None,
        "store, background or a conversation": keep is not None
        and (keep.is_stored or keep.is_background or bool(keep.previous or keep.conversation)),
    }
    for name, is_asked in others.items():
        if is_asked:
            raise RequestError(
                f"images do not go together with {name} yet: leave one out", param=images[0].where
            )
