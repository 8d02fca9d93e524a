"""Constraints of many choices on their way to the engine: each is sent once, and named after that.

Both ends of a link know the newest ``PLACES`` of them, by the places that the sender chooses.
"""

from __future__ import annotations

from msgspec import structs

from kvasir.serve.messages import KeepText, Submit, ToEngine

PLACES = 8
"""Of the choices of a request one follows the other, so that few are in use at a time."""
LONG = 256
"""Characters of a text that is named."""


class TextsTold:
    """What the engine at one link knows."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._oldest = 0

    def named(self, message: ToEngine) -> tuple[ToEngine, ...]:
        """What to send for ``message``."""
        if not isinstance(message, Submit) or len(message.request.params.constraint) < LONG:
            return (message,)
        text = message.request.params.constraint
        known = next((i for i, x in enumerate(self._texts) if x is text or x == text), None)
        if known is not None:
            return (_bare(message, known),)
        if len(self._texts) < PLACES:
            place = len(self._texts)
            self._texts.append(text)
        else:
            place, self._oldest = self._oldest, (self._oldest + 1) % PLACES
            self._texts[place] = text
        return KeepText(place, text), _bare(message, place)


class TextsHeard:
    """The other end."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def keep(self, message: KeepText) -> None:
        self._texts[message.place] = message.text

    def whole(self, message: Submit) -> Submit:
        """``message`` with its text, which it shares with others."""
        return message if message.place is None else _with(message, self._texts[message.place])


def _bare(message: Submit, place: int) -> Submit:
    return structs.replace(_with(message, ""), place=place)


def _with(message: Submit, constraint: str) -> Submit:
    params = structs.replace(message.request.params, constraint=constraint)
    request = structs.replace(message.request, params=params)
    return structs.replace(message, request=request, place=None)
