"""Keeps an engine running: one that dies or hangs gets a successor, which goes on where it was.

What was asked for and told is in the client's token logs, from which requests are replayed, while
new ones wait. Those whose rows were in the step that did not end are suspects (``serve.suspects``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace

import msgspec

from kvasir.config.options import EngineOptions, check
from kvasir.core.errors import ConfigError, RequestError
from kvasir.core.messages import Ready
from kvasir.serve.client import AsyncClient
from kvasir.serve.framing import FrameError
from kvasir.serve.link import BadStart, Link
from kvasir.serve.messages import Shutdown
from kvasir.serve.procfs import ProcessSigns
from kvasir.serve.rest import Idleness, Rest
from kvasir.serve.spawn import DEATH_SECONDS, EngineChild, Engines
from kvasir.serve.streams import EngineDown
from kvasir.serve.successor import check_successor
from kvasir.serve.suspects import MAX_DEATHS, Deaths, Suspects
from kvasir.serve.watchdog import TICK_SECONDS, Watchdog, kill_hung, kill_stopped

logger = logging.getLogger("kvasir.supervisor")

LOOK_SECONDS = 0.002
"""Between two looks whether a process has ended."""
MIN_START_SECONDS = 60.0
TIMES_FIRST_START = 20.0
"""A successor may take so many times what the first start took, and always MIN_START_SECONDS."""
CHANGEABLE = {option.name for option in fields(EngineOptions)} - {"model", "served_model_name"}
CLOSE_SECONDS = 30.0
"""How long an engine that was replaced may take to write what it keeps on disk."""


@dataclass(slots=True, eq=False)
class _Running:
    """An engine process that can serve."""

    child: EngineChild
    link: Link
    info: Ready
    began: float
    why_killed: str = ""
    """By the watchdog."""
    was_stopped: bool = False
    """Somebody had stopped it."""


class _End(msgspec.Struct, frozen=True):
    """Of an engine."""

    reason: str
    ids: frozenset[int]
    """Whose rows were being computed."""
    is_fault: bool
    """It was not ended from outside."""


class Supervisor:
    """Lives in the client's event loop."""

    def __init__(
        self,
        client: AsyncClient,
        engines: Engines,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._engines = engines
        self._clock = clock
        self._suspects = Suspects()
        self._deaths = Deaths()
        self._is_closing = False
        self._engine: _Running | None = None
        """The one that serves."""
        self._next: _Running | None = None
        """The one that takes its place."""
        self._dog: Watchdog | None = None
        """Of the engine that serves."""
        self._swap = asyncio.Lock()
        self._n_resumed = 0
        """Engines that went on with all requests of the one before."""
        self._rest: Rest | None = None
        """While it sleeps, or is told to."""
        client.wants_engine = self._wanted
        self._start_limit: float | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, child: EngineChild) -> None:
        """Serve with ``child`` and its successors until there is none any more: it was told to
        stop, the first could not start, or too many died without progress."""
        began = self._clock()
        try:
            engine: _Running | None = await self._begin(child)
            seconds = self._clock() - began
            self._start_limit = max(MIN_START_SECONDS, TIMES_FIRST_START * seconds)
            while engine is not None:
                n_told = self._client.ledger.n_told
                end = await self._attend(engine)
                progressed = self._client.ledger.n_told > n_told
                engine = await self._successor(engine, end, progressed=progressed)
        except BadStart as error:
            self._die(error.message)
        finally:
            self._client.die("nobody looks after it any more")

    def stop(self) -> None:
        """Tell the engine to end; that is no death then."""
        self._is_closing = True
        if self._engine is not None:
            self._engine.link.send(Shutdown(drain=False))

    @property
    def still(self) -> tuple[float, float]:
        """Seconds that the engine has not gone on though it has work, and how many it may."""
        return (self._dog.still, self._dog.limit) if self._dog and self._engine else (0.0, 1.0)

    async def sleep(self, *, is_held: bool) -> None:
        """End the engine process; what runs waits for the next, which ``wake`` starts, and without
        ``is_held`` a request too. Returns when it has ended. Raises RequestError (409) without an
        engine."""
        if self._rest is None:
            if self._engine is None or self._next is not None or self._is_closing:
                raise RequestError("no engine runs now: try again later", status=409)
            self._rest = Rest(is_held)
            self._engine.link.send(Shutdown(drain=False))
        rest, client = self._rest, self._client
        rest.is_held = client.is_held = rest.is_held or is_held
        while self._rest is rest and not (client.counts.is_asleep or client.dead.is_set()):
            await asyncio.sleep(LOOK_SECONDS)

    def wake(self) -> None:
        """Start an engine again, if none runs because it sleeps."""
        if self._rest is not None:
            self._rest.woken.set()

    def end_hold(self) -> None:
        """From now on requests wake the engine, those that wait too, whoever put it to sleep."""
        if self._rest is not None:
            self._rest.is_held = self._client.is_held = False
            if self._client.n_streams:
                self.wake()

    async def awake(self) -> None:
        """``wake``, and wait for the engine. Raises EngineDown."""
        n_resumed, client = self._n_resumed, self._client
        if self._rest is None and client.state == "ready":
            return
        self.wake()
        while self._n_resumed == n_resumed and not client.dead.is_set():
            await asyncio.sleep(LOOK_SECONDS)
        if client.dead.is_set():
            raise EngineDown(client.failure)

    def _wanted(self) -> None:
        if self._rest is not None and not self._rest.is_held:
            self._rest.woken.set()

    async def doze(self, seconds: float) -> None:
        """Puts the engine to sleep whenever it is awake and nothing was asked for ``seconds``."""
        idleness = Idleness(seconds, self._clock)
        while True:
            await asyncio.sleep(idleness.look_seconds)
            is_awake = self._rest is None and self._engine is not None
            is_used = not is_awake or self._client.n_streams > 0
            if idleness.look(self._client.n_asked, self._engine, is_used=is_used):
                with suppress(RequestError):  # a swap is under way
                    await self.sleep(is_held=False)

    async def swap(self, changes: dict[str, object]) -> Ready:
        """Put an engine with other options in the place of the running one, under its requests.
        Raises RequestError (409) when it could not go on with them, KvasirError when it does not
        start."""
        if self._swap.locked():
            raise RequestError("another swap is under way: wait for it", status=409)
        async with self._swap:
            options = self._changed(changes)
            old = self._engine
            if old is None or self._is_closing:
                raise RequestError("no engine runs now: try again later", status=409)
            child = self._engines.start(options)
            self._client.counts.restarts += 1
            try:
                engine = await self._begin(child)
                check_successor(old.info, engine.info)
                if self._engine is not old:
                    raise RequestError("the engine died meanwhile: try again", status=409)
            except BaseException:
                child.process.kill()
                await self._bury(child)
                raise
            self._engines.options, self._next = options, engine
            n_resumed = self._n_resumed
            old.link.send(Shutdown(drain=False))
            while self._n_resumed == n_resumed and not self._client.dead.is_set():
                await asyncio.sleep(LOOK_SECONDS)
            return engine.info

    def _changed(self, changes: dict[str, object]) -> EngineOptions:
        """Raises RequestError (400)."""
        for name in changes.keys() - CHANGEABLE:
            raise RequestError(f"{name} is no option of an engine that can change", param=name)
        options = replace(self._engines.options, **changes)  # type: ignore[arg-type]
        try:
            check(options)
        except ConfigError as error:
            raise RequestError(error.message) from None
        return options

    async def _begin(self, child: EngineChild) -> _Running:
        """Waits until ``child`` has loaded. Raises BadStart with its words, or how it ended."""
        link = await Link.open(child.sock)
        guard = asyncio.create_task(kill_stopped(child.process))
        try:
            async with asyncio.timeout(self._start_limit):
                info = await link.ready()
        except TimeoutError:
            raise BadStart(f"the engine did not start in {self._start_limit:.0f} s") from None
        except FrameError as error:
            raise BadStart(error.message) from None
        finally:
            guard.cancel()
        if info is None:
            await _ended(child)
            raise BadStart(child.death())
        return _Running(child, link, info, self._clock())

    async def _attend(self, engine: _Running) -> _End:
        """Serve with ``engine`` until it ends."""
        self._engine, self._dog = engine, None
        tasks = [
            asyncio.create_task(self._resume(engine)),
            asyncio.create_task(self._watch(engine)),
        ]
        try:
            said = await self._client.ledger.hear(engine.link)
        except FrameError as error:
            said = error.message
        except Exception as error:  # the engine said what cannot be, and cannot be believed
            logger.exception("an event of the engine cannot be booked")
            said = f"{type(error).__name__}: {error}"
        finally:
            self._engine = None
            for task in tasks:
                task.cancel()
            if self._rest is None:
                self._client.lost("its connection ended")
            else:
                self._client.fall_asleep(is_held=self._rest.is_held)
            engine.link.close()
        return await self._end(engine, said)

    async def _resume(self, engine: _Running) -> None:
        try:
            await self._client.resume(engine.link, engine.info, self._suspects)
        except Exception as error:  # it would wait for ever: no request would reach the engine
            logger.exception("requests cannot be replayed")
            self._client.die(f"requests cannot be replayed: {error}")
            return
        self._n_resumed += 1

    async def _watch(self, engine: _Running) -> None:
        """Kills ``engine`` when it hangs."""
        signs = ProcessSigns(engine.child.process.pid)
        dog = self._dog = Watchdog(engine.child.heartbeat, signs)
        while not dog.look(self._clock(), has_work=self._client.owes_work):
            await asyncio.sleep(TICK_SECONDS)
        engine.was_stopped = signs.is_stopped
        stopped = ", stopped by a signal" if engine.was_stopped else ""
        engine.why_killed = (
            f"the engine process did not go on for {dog.still:.1f} s{stopped} (the limit is "
            f"{dog.limit:.1f} s) and was killed"
        )
        await kill_hung(engine.child.process)

    async def _end(self, engine: _Running, said: str | None) -> _End:
        child = engine.child
        is_asked = self._next is not None or self._rest is not None
        if is_asked and said is None and not engine.why_killed:
            return _End("it was told to end", frozenset(), is_fault=False)
        was_alive = await _ended(child)
        ids = child.heartbeat.ids
        is_fault = not engine.was_stopped
        if not engine.why_killed and not was_alive:
            is_fault = child.is_fault
        return _End(engine.why_killed or said or child.death(), ids, is_fault)

    async def _successor(self, engine: _Running, end: _End, *, progressed: bool) -> _Running | None:
        """Who goes on after ``engine``; None when nobody does."""
        if self._is_closing:
            self._client.die("it was told to end")
            return None
        if self._rest is not None:
            return await self._slept(engine, self._rest)
        self._client.lost(end.reason)
        following, self._next = self._next, None
        if following is not None:
            self._close_later(engine.child)
            return following
        self._client.counts.deaths += 1
        self._client.counts.hang_kills += bool(engine.why_killed)
        self._blame(end)
        logger.error("the engine died and is started again: %s%s", end.reason, engine.child.where)
        self._engines.forget(engine.child)
        lived = self._clock() - engine.began
        if self._deaths.died(progressed=progressed, seconds=lived):
            self._give_up(end.reason)
            return None
        return await self._restart()

    async def _slept(self, engine: _Running, rest: Rest) -> _Running | None:
        """Who goes on once ``rest`` is over."""
        await self._close(engine.child)
        self._client.counts.is_asleep = True
        self._client.counts.sleeps += 1
        logger.info("the engine sleeps: its memory is free")
        if self._client.n_streams:
            self._wanted()
        await rest.woken.wait()
        self._rest = None
        logger.info("the engine is woken")
        self._client.waken()
        return await self._restart()

    def _blame(self, end: _End) -> None:
        live = self._client.ledger.live
        in_step = end.ids & live.keys()
        proven = [i for i in in_step if live[i].n_new]
        guilty = self._suspects.died(in_step, proven, is_fault=end.is_fault)
        if guilty is not None:
            logger.error("request %d ended the engine twice and is not tried again", guilty)
            self._client.convict(guilty, end.reason)

    async def _restart(self) -> _Running | None:
        while True:
            await asyncio.sleep(self._deaths.pause)
            child = self._engines.start()
            self._client.counts.restarts += 1
            try:
                return await self._begin(child)
            except BadStart as error:
                child.process.kill()
                await self._bury(child)
                logger.error("the engine does not start: %s", error.message)
                self._client.lost(error.message)
                if self._deaths.died(progressed=False, seconds=0.0):
                    self._give_up(error.message)
                    return None

    def _give_up(self, reason: str) -> None:
        self._die(f"{MAX_DEATHS} deaths without progress, the last: {reason}")

    def _die(self, reason: str) -> None:
        if not self._is_closing:
            logger.error("the engine is down: %s", reason)
        self._client.die(reason)

    def _close_later(self, child: EngineChild) -> None:
        task = asyncio.create_task(self._close(child))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, child: EngineChild) -> None:
        """One that was told to end may still write what it keeps."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while child.process.poll() is None:
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            child.process.kill()
        await self._bury(child)

    async def _bury(self, child: EngineChild) -> None:
        await _ended(child)
        self._engines.forget(child)


async def _ended(child: EngineChild) -> bool:
    """Returns once the process has ended, which it soon does after its connection; whether it had
    to be killed for that."""
    try:
        async with asyncio.timeout(DEATH_SECONDS):
            while child.process.poll() is None:
                await asyncio.sleep(LOOK_SECONDS)
        return False
    except TimeoutError:
        child.process.kill()
        while child.process.poll() is None:
            await asyncio.sleep(LOOK_SECONDS)
        return True
