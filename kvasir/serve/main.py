"""The API process's event loop: engine client, HTTP server, signals, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import uvicorn
import uvloop
from starlette.routing import Router

from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions
from kvasir.core.errors import KvasirError
from kvasir.sampling.philox import seeds_from
from kvasir.serve.allocator import give_back_large_blocks
from kvasir.serve.app import build_admin, build_app
from kvasir.serve.bodies import BodyBudget
from kvasir.serve.client import AsyncClient
from kvasir.serve.connections import Connections
from kvasir.serve.http_limits import HttpLimits
from kvasir.serve.http_protocol import BoundedHttpProtocol
from kvasir.serve.lifecycle import Lifecycle, Unavailable
from kvasir.serve.listen import LOOPBACK, Listeners, address, limit_connections
from kvasir.serve.metrics import Metrics
from kvasir.serve.service import Model, Service
from kvasir.serve.settle import settle
from kvasir.serve.spawn import EngineChild
from kvasir.serve.streams import EngineDown
from kvasir.serve.text import TextModel, load_text, served_names
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
DEATH_SECONDS = 1.0
"""How long health routes report a dead engine before the server exits."""


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which ends with the signal instead of status 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    options: ServeOptions,
    engine_options: EngineOptions,
    listeners: Listeners,
    child: EngineChild,
) -> int:
    """Exit status."""
    try:
        source = open_model(engine_options.model or default_model())
    except KvasirError as error:
        logger.error("%s", error.message)
        return 1
    give_back_large_blocks()
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Main(options, engine_options, source, listeners, child).run())


class _Main:
    def __init__(
        self,
        options: ServeOptions,
        engine_options: EngineOptions,
        source: ModelSource,
        listeners: Listeners,
        child: EngineChild,
    ) -> None:
        self._options = options
        self._engine_options = engine_options
        self._source = source
        self._listeners = listeners
        self._child = child
        self._names = served_names(engine_options.served_model_name, source.name)
        self._client = AsyncClient(
            max_requests=options.max_requests,
            stream_buffer=options.stream_buffer,
            max_queued_requests=options.max_queued_requests,
            max_queued_tokens=options.max_queued_tokens,
        )
        self._lifecycle = Lifecycle(self._client)
        self._signalled = asyncio.Event()
        self._failed = False
        self._ended_by = 0
        """A signal that came before it was ready."""

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(LONG_THREADS, "kvasir-long"))
        text = asyncio.create_task(asyncio.to_thread(load_text, self._source))
        service = self._service(text)
        n_connections = self._limit_connections()
        server = _Server(self._uvicorn_config(build_app(service), n_connections))
        admin = _Server(self._uvicorn_config(build_admin(service), ADMIN_CONNECTIONS))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal, number)
        tasks = [
            asyncio.create_task(self._client.run(self._child.sock, self._child.death)),
            asyncio.create_task(self._announce(text)),
            asyncio.create_task(self._stop(server)),
        ]
        if self._listeners.admin is not None:
            tasks.append(asyncio.create_task(admin.serve(sockets=[self._listeners.admin])))
        await server.serve(sockets=[self._listeners.clients])
        self._client.shutdown(drain=False)
        for task in tasks:
            task.cancel()
        await asyncio.gather(text, *tasks, return_exceptions=True)
        return 128 + self._ended_by if self._ended_by else int(self._failed)

    def _service(self, text: asyncio.Task[TextModel]) -> Service:
        metrics, root = Metrics(), self._names[0]
        measured = metrics.of(root, lambda: self._client.stats)
        model = Model(root, root, self._client, text, self._lifecycle, measured)
        return Service(
            options=self._options,
            bodies=_bodies(self._options),
            lifecycle=self._lifecycle,
            metrics=metrics,
            models={name: replace(model, name=name) for name in self._names},
            draw_seed=seeds_from(self._engine_options.seed),
            created=int(time.time()),
        )

    def _uvicorn_config(self, app: Router, n_connections: int) -> uvicorn.Config:
        http = partial(
            BoundedHttpProtocol,
            limits=http_limits(self._options),
            connections=Connections(n_connections),
        )
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

    def _limit_connections(self) -> int:
        asked = self._options.max_connections
        most = limit_connections(asked)
        if most < asked:
            logger.warning(
                "%d connections at most: raise the limit of open files (ulimit -n)", most
            )
        return most

    def _signal(self, number: int) -> None:
        """The first signal drains, or ends what does not serve yet; the second ends everything
        now."""
        if self._signalled.is_set():
            self._child.process.kill()
            os._exit(128 + number)
        if self._client.state == "starting":
            self._ended_by = number
        self._lifecycle.draining = True
        self._signalled.set()

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
        for name, reason in info.reasons.items():
            logger.info("%s: %s", name, reason)
        for warning in info.warnings:
            logger.warning("%s", warning)
        if self._options.host not in LOOPBACK and self._options.api_key is None:
            logger.warning("anyone who reaches %s may use it: set --api-key", self._options.host)
        if self._listeners.admin is not None:
            logger.info("admin routes at %s", address(self._listeners.admin))
        logger.info("serving %s at %s/v1", ", ".join(self._names), address(self._listeners.clients))

    async def _stop(self, server: uvicorn.Server) -> None:
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
        server.should_exit = True

    async def _drain(self) -> None:
        if self._ended_by:
            logger.warning("ended by %s", signal.Signals(self._ended_by).name)
            return
        logger.info("draining: %d requests run", self._client.n_streams)
        try:
            async with asyncio.timeout(self._options.shutdown_timeout):
                await self._client.idle()
        except TimeoutError:
            seconds = self._options.shutdown_timeout
            self._client.abort(
                Unavailable(f"the server stopped: {seconds} s to finish are over", code="draining")
            )


def http_limits(options: ServeOptions) -> HttpLimits:
    return HttpLimits(
        body_bytes=options.max_body_bytes,
        head_bytes=options.max_header_bytes,
        n_headers=options.max_headers,
        header_timeout=options.header_timeout,
        body_timeout=options.body_timeout,
        body_rate=options.body_rate,
        write_timeout=options.write_timeout,
    )


def _bodies(options: ServeOptions) -> BodyBudget:
    limit, one = options.max_body_memory, options.max_body_bytes
    return BodyBudget(limit, one, patience=options.body_timeout)
