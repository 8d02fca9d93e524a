"""Who is to blame when an engine dies, and when it is the engine itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from hashlib import blake2b

import msgspec
from msgspec import structs

from kvasir.core.request import EngineRequest

PASSED_TOKENS = 4
"""Output tokens after which a suspect has passed the step that was fatal: at most two plans are
under way, and the tokens of a third may not have arrived."""
MAX_DEATHS = 5
"""Without progress, after which nobody tries again."""
LONG_LIFE_SECONDS = 60.0
"""A life that counts as progress, whatever was asked for in it."""
BAN_SECONDS = 600.0
MAX_BANS = 1024

_encoder = msgspec.msgpack.Encoder()


class Suspects:
    """Requests whose rows were in a step that did not end. They pass that step one at a time."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        """In the order of their trials."""
        self.on_trial: int | None = None

    def begin(self, request_id: int) -> None:
        """From now on its rows are computed, and no other suspect's."""
        self.on_trial = request_id

    def passed(self) -> None:
        """The one on trial is no suspect any more, or has left."""
        if self.on_trial is not None:
            self.waiting.remove(self.on_trial)
            self.on_trial = None

    def died(
        self, in_step: Collection[int], proven: Collection[int] = (), *, is_fault: bool
    ) -> int | None:
        """The engine died while rows of ``in_step`` were computed. Whose fault it is, if that is
        known: of the one on trial, if nobody else was there but ``proven`` ones, who were told a
        token by this engine. The other suspects are none then. ``is_fault``: it was not ended from
        outside."""
        on_trial, self.on_trial = self.on_trial, None
        if not is_fault:
            return None
        if on_trial is None:
            self.waiting = sorted(in_step)
            return None
        unproven = sorted(i for i in in_step if i == on_trial or i not in proven)
        if unproven == [on_trial]:
            self.waiting = []
            return on_trial
        self.waiting = unproven or sorted(in_step)
        return None


class Deaths:
    """Counts those without progress between them."""

    def __init__(self) -> None:
        self.n = 0

    def died(self, *, progressed: bool, seconds: float) -> bool:
        """Whether to give up after a life of so many ``seconds``. ``progressed``: somebody was told
        something in it."""
        if progressed or seconds >= LONG_LIFE_SECONDS:
            self.n = 0
        self.n += 1
        return self.n >= MAX_DEATHS

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try: none after the first death."""
        return 0.1 * (2 ** (self.n - 1) - 1) if self.n else 0.0


class Bans:
    """Requests that ended an engine, and are not tried again for a while: at most ``MAX_BANS``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, request: EngineRequest) -> None:
        key = fingerprint(request)
        self._until.pop(key, None)
        self._until[key] = self._clock() + BAN_SECONDS
        if len(self._until) > MAX_BANS:
            self._until.popitem(last=False)

    def left(self, request: EngineRequest) -> float:
        """Seconds for which ``request`` is refused; 0: it is not."""
        now = self._clock()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        return self._until.get(fingerprint(request), now) - now if self._until else 0.0


def fingerprint(request: EngineRequest) -> bytes:
    """Of what a tenant asks for, whenever it does. Without the seed, which may have been drawn, and
    is another for each choice."""
    params = structs.replace(request.params, seed=0)
    images = [media.digest for media in request.media]
    prompt = request.prompt, images, request.prediction
    value = (request.standing.tenant, request.context, params, prompt, request.pooling)
    return blake2b(_encoder.encode(value), digest_size=16).digest()
