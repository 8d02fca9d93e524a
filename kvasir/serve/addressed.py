"""Images of a request that have addresses, before it is resolved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import structs

from kvasir.serve.asked import Asked
from kvasir.serve.bodies import Body
from kvasir.serve.exchange import Work
from kvasir.serve.jobs import Server, owner_of
from kvasir.serve.seen import images_of
from kvasir.tokenizer.messages import ChatMessage

Messages = tuple[ChatMessage, ...]
Aside = Callable[[Work[Messages]], Awaitable[Messages]]


async def fetch_images(asked: Asked, server: Server, body: Body, aside: Aside) -> Asked:
    """``asked`` with the images themselves in place of their addresses; ``body`` is what they take,
    which is waited for ``aside``. Raises RequestError (400), CapacityError (429), BodiesFull (503),
    ClientGone."""
    images = images_of(asked.messages)
    if server.text.sight is None or len(images) > server.max_images:
        return asked  # which is refused
    if not any(image.address for image in images):
        return asked
    owner = owner_of(asked, server)
    messages = await aside(lambda: server.fetcher.fetched(asked.messages, body, owner))
    return structs.replace(asked, messages=messages)
