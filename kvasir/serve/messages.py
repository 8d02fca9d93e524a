"""What API process and engine process say to each other: tagged msgspec structs, token ids only.

Beside these go the engine's own words, ``core.messages``.
"""

from __future__ import annotations

import msgspec

from kvasir.core.messages import Ready, StepEvents
from kvasir.core.request import EngineRequest
from kvasir.timing.records import Holding, Mark, StepRecord


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """``n`` choices of one prompt, whose ids are ``request.id`` and those after it. ``request`` is
    the first; the others are what ``serve.choices`` makes of it."""

    request: EngineRequest
    n: int = 1
    place: int | None = None
    """Of its constraint among the texts that the engine keeps; None: the request has it."""


class KeepText(msgspec.Struct, frozen=True, tag="keep_text"):
    """A constraint of requests that follow, which name it by its place; what was there before is
    named no more."""

    place: int
    text: str


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    ids: tuple[int, ...]


class EndThinking(msgspec.Struct, frozen=True, tag="end_thinking"):
    """End the reasoning of these; an event tells after how many outputs that is."""

    ids: tuple[int, ...]


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Give back the held blocks of ended requests."""

    ids: tuple[int, ...]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Forget all cached blocks, on disk as well; answered when it is done."""


class ResetMediaCache(msgspec.Struct, frozen=True, tag="reset_mm_cache"):
    """Forget the rows of images; what is sent later has them computed again."""


class Freeze(msgspec.Struct, frozen=True, tag="freeze"):
    """No step is begun until it is undone."""

    is_frozen: bool


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Finish what runs (``drain``) or stop now."""

    drain: bool = True


class AskHoldings(msgspec.Struct, frozen=True, tag="ask_holdings"):
    """What running requests hold now; answered between two steps."""


class News(msgspec.Struct, frozen=True, tag="news"):
    """What happened since the last news, in its order: with them the API process keeps a timeline
    of its own, which answers without the engine. Sent before the events that it explains."""

    items: tuple[StepRecord | Mark, ...]


class HoldingsAnswer(msgspec.Struct, frozen=True, tag="holdings"):
    holdings: tuple[Holding, ...]


class CacheReset(msgspec.Struct, frozen=True, tag="cache_reset"):
    """Nothing is cached of what was computed before."""


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The engine cannot go on."""

    message: str
    misused: bool = False
    """What was asked for cannot be: other options are needed."""


ToEngine = (
    Submit
    | KeepText
    | Cancel
    | EndThinking
    | Release
    | AskHoldings
    | ResetPrefixCache
    | ResetMediaCache
    | Freeze
    | Shutdown
)
FromEngine = Ready | StepEvents | News | HoldingsAnswer | CacheReset | Fatal
