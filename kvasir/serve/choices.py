"""The choices of one prompt, as requests."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from kvasir.core.request import EngineRequest
from kvasir.validation.seeds import other_choice


def choices(request: EngineRequest, n: int) -> Iterator[EngineRequest]:
    """``n`` choices with ids from ``request.id`` on. They share the prompt and every parameter but
    the seed; only the first scores the prompt, and the others fork from it."""
    yield request
    for i in range(1, n):
        params = other_choice(request.params, i)
        yield structs.replace(request, id=request.id + i, params=params, parent=request.id)
