"""``python -m tests.e2e.fault_server JSON``: the real server on the engine of ``fault_engine``."""

from __future__ import annotations

import json
import os
import sys

import uvloop

from kvasir.cli.startup import finish
from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions
from kvasir.serve.server import run

if __name__ == "__main__":
    if "PULSE" in os.environ:
        from tests.e2e import pulse  # brings the engine, which this process has no use for

        uvloop.new_event_loop = pulse.new_event_loop  # type: ignore[assignment]
    given = json.loads(sys.argv[1])
    serve_options, engine_options = ServeOptions(**given["serve"]), EngineOptions(**given["engine"])
    status = run(serve_options, engine_options, given["module"])
    finish()
    sys.exit(status)
