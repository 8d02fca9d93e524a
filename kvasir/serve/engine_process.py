"""The engine process: ``python -m kvasir.serve.engine_process FD``, started by the API process."""

from __future__ import annotations

import sys

from kvasir.engine.build import build_engine
from kvasir.serve.engine_child import main

if __name__ == "__main__":
    sys.exit(main(build_engine))
