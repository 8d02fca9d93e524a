"""``run`` is the whole life of ``kvasir serve``: engine process, HTTP server, drain, exit
status."""

from __future__ import annotations

import sys

from kvasir.config.options import EngineOptions, check
from kvasir.config.serving import ServeOptions, check_body_memory
from kvasir.core.controls import one_line
from kvasir.core.errors import KvasirError
from kvasir.serve.listen import Listeners, close_listener, open_admin_listener, open_listener
from kvasir.serve.logs import configure
from kvasir.serve.settle import hurry
from kvasir.serve.spawn import ENGINE_MODULE, spawn_engine, stop_engine

STOP_SECONDS = 5.0
"""How long the engine may take to end after its last request."""


def run(
    serve_options: ServeOptions, engine_options: EngineOptions, engine_module: str = ENGINE_MODULE
) -> int:
    """Serve until a signal or the engine's end; exit status 0 only after a clean drain."""
    configure(serve_options.log_level)
    try:
        check(serve_options)
        check(engine_options)
        check_body_memory(serve_options)
        admin = open_admin_listener(serve_options)
        listener = open_listener(serve_options)
    except KvasirError as error:
        print(f"kvasir: {one_line(error.message)}", file=sys.stderr)
        return 2
    child = spawn_engine(engine_options, engine_module)
    hurry()
    # Imported now: while these libraries load (0.4 s), the engine process loads the model.
    from kvasir.serve import main

    status = 130
    try:
        status = main.run(serve_options, engine_options, Listeners(listener, admin), child)
        return status
    except KeyboardInterrupt:
        return status
    finally:
        stop_engine(child, STOP_SECONDS if status < 128 else 0)
        close_listener(listener, serve_options)
        if admin is not None:
            admin.close()
