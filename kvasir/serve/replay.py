"""What an engine is sent of the choices that another one left unfinished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from kvasir.core.messages import Ready
from kvasir.core.request import EngineRequest
from kvasir.serve.link import Link
from kvasir.serve.streams import EventStream
from kvasir.serve.tokenlog import TokenLog, replay


@dataclass(slots=True)
class Live:
    """A choice that is not answered yet."""

    stream: EventStream
    log: TokenLog
    """With it another engine can go on where this one stopped."""
    link: Link | None = None
    """Where it was sent last; None: nowhere yet."""
    n_before: int = 0
    """Outputs that were told before it was sent there."""

    ends_thinking: bool = False
    """Whether its reasoning shall end: who goes on with it is told where."""

    @property
    def n_new(self) -> int:
        """Outputs that the engine told which has it."""
        return len(self.log.emitted) - self.n_before


class Replay:
    """Of what is ``live``, for an engine that is as ``info`` says."""

    def __init__(self, live: Mapping[int, Live], info: Ready) -> None:
        self._live = live
        self._keys = {"key_root": info.key_root, "numerics_id": info.numerics_id}
        self._parents: dict[int, int] = {}
        """By the parent that requests had, who takes its place."""

    def request(self, live: Live) -> EngineRequest:
        """What goes on with ``live``. The first of the choices of a prompt, and of the beams that
        grew from one, is the parent of the others when their own has ended. Raises ReplayError
        when its next bytes could differ."""
        request = replay(live.log, **self._keys)
        if live.link is None:
            request = structs.replace(request, is_resumed=False)
        if request.parent < 0 or request.parent in self._live:
            return request
        parent = self._parents.setdefault(request.parent, request.id)
        return structs.replace(request, parent=-1 if parent == request.id else parent)
