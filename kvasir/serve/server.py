"""``run`` is the whole life of ``kvasir serve``: engine process, HTTP server, drain, exit
status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from kvasir.config.controls import one_line
from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions
from kvasir.core.errors import KvasirError
from kvasir.serve.keys.keyring import open_keyring
from kvasir.serve.listen import open_listeners
from kvasir.serve.logs import configure, for_children
from kvasir.serve.reload import Current, OptionValues, checked
from kvasir.serve.settle import hurry
from kvasir.serve.spawn import ENGINE_MODULE, Engines

STOP_SECONDS = 5.0
"""How long the engine may take to end after its last request."""


def run(
    serve_options: ServeOptions,
    engine_options: EngineOptions,
    engine_module: str = ENGINE_MODULE,
    read: Callable[[], OptionValues] | None = None,
) -> int:
    """Serve until a signal or the engine's end; exit status 0 only after a clean drain. ``read``
    says the options again, for SIGHUP."""
    configure(serve_options.log_level, serve_options.log_format)
    os.environ.update(for_children(serve_options.log_level, serve_options.log_format))
    try:
        current = Current(checked(OptionValues(serve_options, engine_options)), read)
        keys = open_keyring(serve_options)
        listeners = open_listeners(serve_options)
    except KvasirError as error:
        print(f"kvasir: {one_line(error.message)}", file=sys.stderr)
        return 2
    engines = Engines(engine_options, engine_module)
    first = engines.start()
    hurry()
    # Imported now: while these libraries load (0.4 s), the engine process loads the model.
    from kvasir.serve import main

    status = 130
    try:
        status = main.run(current, keys, listeners, engines, first)
        return status
    except KeyboardInterrupt:
        return status
    finally:
        engines.stop(STOP_SECONDS if status < 128 else 0)
        listeners.close(serve_options)
