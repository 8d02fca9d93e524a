"""Pixels of beams on their way to the engine: sent once, and heard by every beam."""

from __future__ import annotations

import random

from msgspec import structs

from kvasir.core.params import TokenParams
from kvasir.core.request import EngineRequest
from kvasir.core.tiles import Media, media_at
from kvasir.serve.messages import Cancel, Submit
from kvasir.serve.pixels import PixelsHeard, PixelsTold

IMAGES = tuple(media_at(i, 3, bytes([i]) * 27) for i in range(3))


def submit(number: int, media: tuple[Media, ...], hold: float = 60.0) -> Submit:
    params = TokenParams(seed=0, max_tokens=1)
    return Submit(EngineRequest(number, tuple(range(9)), params, media=media, hold_seconds=hold), 1)


def n_bytes(message: Submit) -> int:
    return sum(len(x.pixels) for x in message.request.media)


def test_one_search_sends_them_once() -> None:
    told, heard = PixelsTold(), PixelsHeard()
    sent = []
    for i in range(5):
        message = told.without(submit(i, IMAGES[:2]))
        assert isinstance(message, Submit)
        sent.append(n_bytes(message))
        assert heard.whole(message) == submit(i, IMAGES[:2])
    assert sent == [54, 0, 0, 0, 0]


def test_what_comes_between_is_heard_right() -> None:
    """Any order of searches, requests with other images, or none, that are held or not."""
    rng, told, heard = random.Random(3), PixelsTold(), PixelsHeard()
    for i in range(500):
        media = rng.choice([(), IMAGES[:1], IMAGES[1:2], IMAGES, IMAGES[:2]])
        asked = submit(i, media, rng.choice([0.0, 60.0, 60.0]))
        other = Cancel((i,))
        assert told.without(other) is other
        message = told.without(asked)
        assert isinstance(message, Submit)
        assert heard.whole(message) == asked


def test_places_and_columns_are_their_own() -> None:
    """Equal pixels elsewhere in a prompt are not those that were told."""
    told = PixelsTold()
    moved = tuple(structs.replace(x, start=x.start + 4) for x in IMAGES[:1])
    told.without(submit(0, IMAGES[:1]))
    message = told.without(submit(1, moved))
    assert isinstance(message, Submit) and n_bytes(message) == 27


def test_other_pixels_at_the_same_place_and_other_shapes_of_the_same_are_sent() -> None:
    """Of images all of one colour the pixels are equal, whichever side is longer."""
    told, heard = PixelsTold(), PixelsHeard()
    for media in (
        media_at(0, 6, bytes(54), 2),
        media_at(0, 6, bytes([1]) * 54, 2),
        media_at(0, 6, bytes([1]) * 54, 3),
    ):
        message = told.without(submit(0, (media,)))
        assert isinstance(message, Submit) and n_bytes(message) == 54
        assert heard.whole(message) == submit(0, (media,))
