"""Pixels of beams on their way to the engine: those of one search, which asks for every token anew,
are sent once as long as no other request comes between.

Both ends of a link know the images of the newest request that is held, and of no other.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from kvasir.core.tiles import Media
from kvasir.serve.messages import Submit, ToEngine


class PixelsTold:
    """What the engine at one link knows."""

    def __init__(self) -> None:
        self._last: tuple[Media, ...] = ()

    def without(self, message: ToEngine) -> ToEngine:
        """``message`` as it is sent."""
        if not isinstance(message, Submit):
            return message
        known, self._last = self._last, _kept(message)
        if not self._last or [_name(x) for x in known] != [_name(x) for x in self._last]:
            return message
        return _with(message, [structs.replace(x, pixels=b"") for x in self._last])


class PixelsHeard:
    """The other end."""

    def __init__(self) -> None:
        self._last: tuple[Media, ...] = ()

    def whole(self, message: Submit) -> Submit:
        """``message`` with the pixels that it came without."""
        if message.request.media and not any(x.pixels for x in message.request.media):
            message = _with(message, self._last)
        self._last = _kept(message)
        return message


def _kept(message: Submit) -> tuple[Media, ...]:
    """A beam holds its blocks for those that grow from it."""
    return message.request.media if message.request.hold_seconds else ()


def _name(media: Media) -> tuple[int, int, bytes]:
    return media.start, media.n_tokens, media.digest


def _with(message: Submit, media: Sequence[Media]) -> Submit:
    return structs.replace(message, request=structs.replace(message.request, media=tuple(media)))
