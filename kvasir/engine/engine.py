"""The engine on one screen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from msgspec import structs

from kvasir.core.errors import RequestError
from kvasir.core.messages import EngineStats, StepEvents, TokenEvent
from kvasir.core.params import TokenParams, mask_words
from kvasir.core.plan import Transfer
from kvasir.core.request import NO_DRAWS, EngineRequest
from kvasir.core.tiles import TileSpec
from kvasir.engine.loop import EngineFault, Loop, OverlappedLoop, Watch
from kvasir.engine.masking import Masking
from kvasir.exec.base import Executor
from kvasir.exec.disk.saving import Saving
from kvasir.exec.disk.store import DiskStore
from kvasir.sampling.masks import Masks
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.records import Holding
from kvasir.timing.timeline import Timeline

P = ParamSpec("P")
T = TypeVar("T")
Words = tuple[tuple[int, ...], ...]
LOOK_SECONDS = 0.001
"""Between two looks whether a constraint is made, while nothing is computed."""


class Engine:
    """Requests in, token events out; one caller at a time.

    After an EngineFault, and after anything that cut a method short, the engine only closes: replay
    its requests from their logs in a new one. In a child of fork it does not even that.
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        *,
        overlap: bool = False,
        disk: DiskStore | None = None,
        masks: Masks | None = None,
        jump_ahead: bool = True,
        tile: TileSpec | None = None,
    ) -> None:
        """``disk``: the one that the scheduler plans with; it is closed with the engine.
        ``masks``: what it knows of constraints; None: nothing, and it refuses constrained
        requests. ``jump_ahead``: tokens that these force have no steps of their own. ``tile``: of
        images that the model sees; None: it sees none."""
        self._tile = tile
        self._saving = None if disk is None else Saving(executor, disk)
        self._executor = executor
        self._scheduler = scheduler
        self._masking = Masking(masks, scheduler, executor.sizes, jumps=jump_ahead)
        make = OverlappedLoop if overlap else Loop
        self._loop = make(self._executor, scheduler, self._masking)
        self._unsaved: Iterator[Transfer] | None = None
        self._refused: list[TokenEvent] = []
        self._unprepared: dict[int, tuple[EngineRequest, float]] = {}
        """Requests that no step waits for, and since when: their constraints are made beside the
        steps."""
        self._words: Words = ()
        """The bad words that were checked last: the choices of a request share them."""
        self._process = os.getpid()
        self._failure = ""

    def show(self, watch: Watch) -> None:
        """From now on ``watch`` is shown what is being computed."""
        self._loop.watch = watch

    @property
    def is_sound(self) -> bool:
        """False when something was cut short: the engine only closes."""
        return not self._failure

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises RequestError when it can never run."""
        words = request.params.bad_words
        new = () if words is self._words else words
        _check_ids(request.params, new, self._executor.sizes.vocab_size)
        self._words = words
        _check_kind(request)
        _check_media(request, self._tile)
        self._masking.prepare(request.id, request.params.constraint)
        if not self._masking.is_ready(request.id):
            self._unprepared[request.id] = request, self.timeline.clock()
            return
        try:
            self._whole(self._scheduler.add, request)
        except RequestError:
            self._masking.ended(request.id)
            raise

    def submit(self, requests: Iterable[EngineRequest]) -> None:
        """Queue requests; one that can never run gets an error event instead of an exception."""
        for request in requests:
            try:
                self.add(request)
            except RequestError as error:
                self._refused.append(TokenEvent.failed(request.id, error))

    def cancel(self, request_id: int) -> bool:
        """End a request; False when it ended before."""
        self._queue(request_id)
        self._masking.ended(request_id)
        return self._whole(self._scheduler.cancel, request_id)

    def end_thinking(self, request_id: int) -> None:
        """End the reasoning of a request whose constraint says that this may be asked for."""
        self._queue(request_id)
        self._masking.end_thinking(request_id)

    def release(self, request_id: int) -> None:
        """Give back the held blocks of an ended request."""
        self._whole(self._scheduler.release, request_id)

    def step(self) -> StepEvents:
        """Compute one step if there is one; raises EngineFault when the executor fails."""
        return self._whole(self._step)

    @property
    def lead(self) -> float:
        """Seconds for which ``step`` may wait while another runs: requests that come meanwhile need
        not wait for one more."""
        return self._loop.lead

    def _queue(self, request_id: int) -> None:
        """What waits for its constraint no more."""
        request, since = self._unprepared.pop(request_id, (None, 0.0))
        try:
            if request is not None:
                self._whole(self._scheduler.add, request)
                self.timeline.mark(request_id, "compiled", since=since)
        except RequestError as error:
            self._refused.append(TokenEvent.failed(request_id, error))

    def _step(self) -> StepEvents:
        for request_id in tuple(self._unprepared):
            if not self._masking.is_ready(request_id):
                break  # they are made in their order
            self._queue(request_id)
        if self._unprepared and not self._scheduler.has_work:
            time.sleep(LOOK_SECONDS)
        refused, self._refused = tuple(self._refused), []
        self._unsaved = None
        events = refused + self._loop.step() + self._masking.closed()
        for event in events:
            if event.finish is not None:
                self._masking.ended(event.id)
        if self._saving is not None and not events and self._scheduler.is_stalled:
            self._saving.wait()
        if not self.has_work:
            self.check()
        return StepEvents(events, self.stats())

    @property
    def has_work(self) -> bool:
        return bool(self._refused or self._unprepared) or self._scheduler.has_work

    def save(self) -> bool:
        """Save some cached blocks to disk while there is no work; False when all are saved."""
        if self._saving is None or self.has_work:
            return False
        if self._unsaved is None:
            self._unsaved = self._scheduler.unsaved()
        return self._saving.save(self._unsaved)

    def stats(self) -> EngineStats:
        stats, masking = self._scheduler.stats(), self._masking
        return structs.replace(stats, n_masks=masking.n_masks, mask_seconds=masking.seconds)

    @property
    def timeline(self) -> Timeline:
        """What happened to requests that run, or ended not too long ago, and in the last steps."""
        return self._scheduler.timeline

    def holdings(self) -> tuple[Holding, ...]:
        """What running requests have of the KV blocks now, in the order of seniority."""
        running = self._scheduler.running
        return tuple(Holding(x.id, x.n_computed, len(x.table.held(0))) for x in running)

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks; what runs goes on."""
        self._unsaved = None
        self._whole(self._scheduler.reset_prefix_cache)

    def reset_mm_cache(self) -> None:
        """Forget the rows that towers made of images; what comes later has them computed again."""
        self._whole(self._scheduler.forget_media)

    @property
    def is_forgetting(self) -> bool:
        """Whether the disk still has what was to be forgotten: another engine would find it."""
        return self._saving is not None and self._saving.is_clearing

    def check(self) -> None:
        """Raises KvasirError unless free, cached and used blocks add up and have their owners."""
        self._scheduler.check()

    def close(self) -> None:
        """Wait for a running step and give everything back."""
        if os.getpid() != self._process:
            return
        if self._saving is not None and self.is_sound and not self.has_work:
            self._saving.save_all(self._scheduler.unsaved())
        self._executor.close()
        self._masking.close()
        if self._saving is not None:
            self._saving.close()
        self._failure = self._failure or "it is closed"

    def _whole(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``act``, of which nothing may be left out but by a refusal. Raises EngineFault when that
        happened before, and in a child of fork, which has no threads to compute with."""
        if os.getpid() != self._process:
            raise EngineFault(
                f"this engine was built by process {self._process} and cannot be used in its "
                f"child {os.getpid()}: build it after the fork, or start the child with spawn"
            )
        if self._failure:
            raise EngineFault(f"the engine cannot go on: {self._failure}")
        try:
            return act(*args, **kwargs)
        except RequestError:
            raise
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            raise


def _check_ids(params: TokenParams, words: Words, vocab_size: int) -> None:
    """An id that no logits have would end the step, and the engine with it. ``words``: those of its
    bad words that nobody has checked."""
    ids = (*params.stop_ids, *(token for token, _ in params.logit_bias), *params.logprob_ids)
    ids = (*ids, *(token for word in words for token in word))
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        worst = min(ids) if min(ids) < 0 else max(ids)
        raise RequestError(
            f"stop_ids, logit_bias, bad_words or logprob_ids names token {worst}, the model has "
            f"the ids 0 to {vocab_size - 1}"
        )
    if params.allowed and len(params.allowed) != 4 * mask_words(vocab_size):
        raise RequestError(f"allowed has {len(params.allowed)} bytes: a bit for each token")


def _check_media(request: EngineRequest, tile: TileSpec | None) -> None:
    """A tile of another size would end the step, and the engine with it."""
    if not request.media:
        return
    if tile is None:
        raise RequestError("this engine reads no images: send tokens alone")
    at = 0
    for media in request.media:
        if not (tile.fits(media) and at <= media.start and media.end <= len(request.prompt)):
            raise RequestError(
                f"{len(media.pixels)} bytes of pixels for tokens {media.start} to {media.end} of "
                f"{len(request.prompt)}: {tile.wanted}"
            )
        at = media.end


def _check_kind(request: EngineRequest) -> None:
    if request.context.adapter:
        # nothing here computes with it: entries would be kept under a wrong name
        raise RequestError("this engine has no adapters: send tokens alone")
    if request.pooling is not None and (request.params != NO_DRAWS or request.emitted):
        raise RequestError("a request that pools draws nothing: send it without sampling")
