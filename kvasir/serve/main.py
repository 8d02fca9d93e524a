"""The API process's event loop: engine client, HTTP server, signals, drain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from kvasir.config.pixels import pixel_bounds
from kvasir.config.serving import ServeOptions, media_domains
from kvasir.core.errors import KvasirError
from kvasir.serve.allocator import give_back_large_blocks
from kvasir.serve.announced import announce
from kvasir.serve.app import build_admin, build_admin_socket, build_app
from kvasir.serve.arrivals import in_turns
from kvasir.serve.background import Background
from kvasir.serve.bodies import BodyBudget
from kvasir.serve.client import AsyncClient
from kvasir.serve.connections import Connections
from kvasir.serve.fetch import ImageFetcher
from kvasir.serve.handover import Handover, Taken
from kvasir.serve.http_limits import limits_of
from kvasir.serve.http_protocol import BoundedHttpProtocol
from kvasir.serve.http_server import HttpServer
from kvasir.serve.keys.keyring import Keyring
from kvasir.serve.lag import measure_lag
from kvasir.serve.lifecycle import Lifecycle, Unavailable
from kvasir.serve.listen import Listeners, most_connections
from kvasir.serve.metrics import Metrics
from kvasir.serve.origins import with_cors
from kvasir.serve.reload import Current
from kvasir.serve.request_log import NOTED_BYTES, observers
from kvasir.serve.service import Model, Service
from kvasir.serve.settle import SERVER_UNTIDY, rarely, settle, tidy
from kvasir.serve.spawn import EngineChild, Engines
from kvasir.serve.state.state import State, open_state, quota_of
from kvasir.serve.streams import EngineDown
from kvasir.serve.supervisor import Supervisor
from kvasir.serve.systemd import Manager
from kvasir.serve.text import TextModel, load_text, served_names
from kvasir.serve.tracing import Tracing, open_tracing
from kvasir.serve.trial import TrialCompiler
from kvasir.validation.seeds import seeds_from
from kvasir.weights.default import default_model
from kvasir.weights.source import ModelSource, open_model

logger = logging.getLogger("kvasir.server")

KEEP_ALIVE_SECONDS = 75
ADMIN_CONNECTIONS = 16
SWITCH_SECONDS = 0.001
"""How long a thread that parses may keep the event loop waiting for the interpreter."""
LONG_THREADS = 1
"""Threads that parse, render and tokenize what is long. They share the interpreter with the event
loop, which gets its turn after each of theirs: more do no more, and keep it waiting. What parsing
a body takes is there once."""
FLUSH_SECONDS = 2
"""How long responses that are complete may take to reach their clients at the end."""
DESERTED_SECONDS = 0.05
"""Between two looks whether somebody is connected."""
TIDY_SECONDS = 1.0
"""Between two looks for garbage."""
DEATH_SECONDS = 1.0
"""How long health routes report a dead engine before the server exits."""


def run(
    current: Current,
    keys: Keyring,
    listeners: Listeners,
    engines: Engines,
    first: EngineChild,
) -> int:
    """Exit status. ``first``: the engine process that is starting."""
    options = current.options
    try:
        own = engines.options
        source = open_model(own.model or default_model(), own.mmproj)
        tracing = open_tracing(options.otlp_traces_endpoint, os.environ)
        state = open_state(options, follows=listeners.predecessor is not None)
    except KvasirError as error:
        logger.error("%s", error.message)
        return 1
    give_back_large_blocks()
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            main = _Main(current, source, state, tracing, keys, listeners, engines, first)
            return runner.run(main.run())
        finally:
            tracing.close()
            state.store.close()


class _Main:
    def __init__(
        self,
        current: Current,
        source: ModelSource,
        state: State,
        tracing: Tracing,
        keys: Keyring,
        listeners: Listeners,
        engines: Engines,
        first: EngineChild,
    ) -> None:
        self._current = current
        self._engines = engines
        self._first = first
        self._source = source
        self._state = state
        self._tracing = tracing
        self._keys = keys
        self._listeners = listeners
        self._names = served_names(engines.options.served_model_name, source.name)
        options = current.options
        self._client = AsyncClient(
            max_requests=options.max_requests,
            stream_buffer=options.stream_buffer,
            max_queued_requests=options.max_queued_requests,
            max_queued_tokens=options.max_queued_tokens,
        )
        self._supervisor = Supervisor(self._client, engines)
        self._lifecycle = Lifecycle(self._client)
        self._manager = Manager()
        self._connections = Connections(options.max_connections)
        limit, one = options.max_body_memory, options.max_body_bytes
        self._bodies = BodyBudget(limit, one, patience=options.body_timeout)
        current.follow(self._follow)
        self._signalled = asyncio.Event()
        self._failed = False
        self._ended_by = 0
        """A signal that came before it was ready."""

    @property
    def _options(self) -> ServeOptions:
        return self._current.options

    def _follow(self, options: ServeOptions) -> None:
        """What others keep of ``options``."""
        self._client.limit(
            max_requests=options.max_requests,
            stream_buffer=options.stream_buffer,
            max_queued_requests=options.max_queued_requests,
            max_queued_tokens=options.max_queued_tokens,
        )
        self._bodies.body_limit = options.max_body_bytes
        self._bodies.limit, self._bodies.patience = options.max_body_memory, options.body_timeout
        self._connections.limit = most_connections(options.max_connections)
        self._state.store.quota = quota_of(options)
        self._state.files.max_bytes = options.max_file_bytes

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(LONG_THREADS, "kvasir-long"))
        bounds = pixel_bounds(self._engines.options.mm_processor_kwargs)
        text = asyncio.create_task(asyncio.to_thread(load_text, self._source, bounds))
        service = self._service(text)
        self._background = Background(service)
        app = in_turns(with_cors(build_app(service), self._options), self._client.slices)
        server = HttpServer(self._uvicorn_config(app, self._connections))
        admins = self._admins(service)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        tasks = [
            asyncio.create_task(self._supervisor.run(self._first)),
            announced := asyncio.create_task(self._announce(text)),
            stopped := asyncio.create_task(self._stop(server)),
            asyncio.create_task(self._manager.watch()),
            asyncio.create_task(measure_lag(service.metrics.lag.observe)),
            asyncio.create_task(self._background.run()),
            asyncio.create_task(self._tidy()),
        ]
        if (seconds := self._options.sleep_idle_seconds) is not None:
            tasks.append(asyncio.create_task(self._supervisor.doze(seconds)))
        if self._listeners.predecessor is not None:  # which accepts until this one can answer
            await asyncio.wait((announced, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not server.should_exit and not self._failed:
                await self._follow_on(self._listeners.predecessor)
        if self._options.handover is not None:
            tasks.append(asyncio.create_task(self._hand_over(announced, server, admins)))
        for admin, listener in admins.items():
            tasks.append(asyncio.create_task(admin.serve(sockets=[listener])))
        await server.serve(sockets=[self._listeners.clients])
        await self._background.close()
        await self._background.end()
        self._supervisor.stop()
        self._compiler.close()
        service.default.images.close()
        service.fetcher.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(text, *tasks, return_exceptions=True)
        return 128 + self._ended_by if self._ended_by else int(self._failed)

    def _service(self, text: asyncio.Task[TextModel]) -> Service:
        metrics, root = Metrics(self._options.metrics_prefix), self._names[0]
        measured = metrics.of(root, lambda: self._client.stats, self._client.counts)
        options = self._options
        self._compiler = TrialCompiler(
            self._source.path,
            seconds=options.grammar_seconds,
            megabytes=options.grammar_megabytes,
            tried=measured.judged,
        )
        model = Model(root, root, self._client, text, self._lifecycle, measured, self._compiler)
        return Service(
            current=self._current,
            bodies=self._bodies,
            lifecycle=self._lifecycle,
            metrics=metrics,
            models={name: replace(model, name=name) for name in self._names},
            state=self._state,
            observers=(*observers(self._options), self._tracing.observe),
            n_noted=NOTED_BYTES if self._options.log_prompts else 0,
            draw_seed=seeds_from(self._engines.options.seed),
            created=int(time.time()),
            keys=self._keys,
            supervisor=self._supervisor,
            fetcher=ImageFetcher(media_domains(options.allowed_media_domains)),
        )

    def _admins(self, service: Service) -> dict[HttpServer, socket.socket]:
        """Servers of the operator, each with its listener."""
        found = {}
        for listener, build in (
            (self._listeners.admin, build_admin),
            (self._listeners.admin_socket, build_admin_socket),
        ):
            if listener is not None:
                few = Connections(ADMIN_CONNECTIONS)
                found[HttpServer(self._uvicorn_config(build(service), few))] = listener
        return found

    def _uvicorn_config(self, app: ASGIApp, connections: Connections) -> uvicorn.Config:
        def http(*args: Any, **more: Any) -> BoundedHttpProtocol:
            """A connection keeps the limits that held when it came."""
            limits = limits_of(self._options)
            return BoundedHttpProtocol(*args, limits=limits, connections=connections, **more)

        return uvicorn.Config(
            app,
            http=http,  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FLUSH_SECONDS,
        )

    def _signal(self, number: int) -> None:
        """The first signal drains, or ends what does not serve yet; the second ends everything
        now."""
        if self._signalled.is_set():
            self._engines.kill()
            os._exit(128 + number)
        if self._client.state == "starting":
            self._ended_by = number
        self._lifecycle.leaving = True
        self._lifecycle.draining = not self._options.drain_delay
        self._signalled.set()

    def _reload(self) -> None:
        """Reads keys and options again; those that hold stay when it cannot."""
        try:
            self._keys.reload()
            logger.info("the keys were read again: %d", len(self._keys.keys))
        except KvasirError as error:
            logger.error("%s; the keys stay as they were", error.message)
        self._current.reload()

    async def _announce(self, text: asyncio.Task[TextModel]) -> None:
        """Says when both sides are loaded, or why they will never be."""
        try:
            info = await self._client.wait_ready()
            await asyncio.shield(text)
        except KvasirError as error:
            if not isinstance(error, EngineDown):  # that one is logged where it is noticed
                logger.error("%s", error.message)
            self._failed = True
            self._client.dead.set()
            return
        settle()
        rarely(SERVER_UNTIDY)
        self._manager.tell("READY=1", f"MAINPID={os.getpid()}")
        announce(info, self._options, self._listeners, self._names, is_open=self._keys.is_open)
        await text.result().report(self._options.tool_format)  # from now on nobody waits for it

    async def _tidy(self) -> None:
        """Looks for garbage while nobody asks for anything."""
        while True:
            await self._client.idle()
            tidy()
            await asyncio.sleep(TIDY_SECONDS)

    async def _stop(self, server: HttpServer) -> None:
        """Ends ``server`` after a drain, or a moment after the engine's death."""
        dead = asyncio.create_task(self._client.dead.wait())
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait((dead, signalled), return_when=asyncio.FIRST_COMPLETED)
        if not dead.done():
            drained = asyncio.create_task(self._drain())
            await asyncio.wait((dead, drained), return_when=asyncio.FIRST_COMPLETED)
        if dead.done():
            self._failed = True
            await asyncio.sleep(DEATH_SECONDS)
        server.end()

    async def _drain(self) -> None:
        if self._ended_by:
            logger.warning("ended by %s", signal.Signals(self._ended_by).name)
            return
        self._manager.tell("STOPPING=1")
        self._let_go_on()
        await asyncio.sleep(self._options.drain_delay)
        self._lifecycle.draining = True
        await self._background.close()
        logger.info("draining: %d requests run", self._client.n_streams)
        await self._finish(self._client.idle())

    def _let_go_on(self) -> None:
        """Nobody is there any more who would end a pause or a sleep."""
        self._client.gate.open()
        self._supervisor.end_hold()

    async def _follow_on(self, predecessor: Taken) -> None:
        """From now on this server accepts, unless another has taken the place."""
        try:
            await asyncio.to_thread(predecessor.say_ready)
        except KvasirError as error:
            logger.error("%s: this one ends", error.message)
            self._failed = True
            self._client.dead.set()

    async def _hand_over(
        self,
        announced: asyncio.Task[None],
        server: HttpServer,
        admins: Iterable[HttpServer],
    ) -> None:
        """Ends this server when a successor accepts in its place. Who is connected already is
        answered: the next request of each connection is its last, and who asks for none is not
        waited for."""
        await announced
        if self._failed or self._options.handover is None:
            return
        try:
            await Handover(self._options.handover, self._listeners.by_name).given()
        except OSError as error:
            logger.error("no successor can take the sockets: %s", error)
            return
        logger.info("a successor accepts: %d requests run", self._client.n_streams)
        self._let_go_on()
        self._connections.is_ending = True
        for accepting in (server, *admins):
            for each in accepting.servers:
                each.close()
        await self._background.close()
        await self._finish(self._deserted())
        server.end()

    async def _deserted(self) -> None:
        """Returns when nobody is connected any more, and nothing runs."""
        while self._connections:
            self._connections.close_idle()
            await asyncio.sleep(DESERTED_SECONDS)
        await self._client.idle()

    async def _finish(self, finished: Awaitable[None]) -> None:
        """Waits for it as long as requests may take at the end; then they fail."""
        try:
            async with asyncio.timeout(self._options.shutdown_timeout):
                await finished
        except TimeoutError:
            seconds = self._options.shutdown_timeout
            self._client.abort(
                Unavailable(f"the server stopped: {seconds} s to finish are over", code="draining")
            )
