"""The engine process: ``python -m kvasir.serve.engine_process FD``, started by the API process."""

from __future__ import annotations

import sys

from kvasir.serve.settle import hurry


def run() -> int:
    """Its exit status."""
    hurry()
    # Imported now: what is made here stays, and to look through it for garbage takes 20 ms of 250.
    from kvasir.engine.build import build_engine
    from kvasir.serve.engine_child import main

    return main(build_engine)


if __name__ == "__main__":
    sys.exit(run())
