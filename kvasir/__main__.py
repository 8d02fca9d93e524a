"""The ``kvasir`` command, and ``python -m kvasir``."""

from __future__ import annotations

import os
import sys

from kvasir.cli.startup import finish, prepare


def main() -> None:
    prepare()
    # NumPy's BLAS starts a thread for each CPU when it is loaded, for 20 ms and 30 MB: Kvasir's
    # kernels are its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Imported now: a signal may come while this takes its time.
    from kvasir.cli.main import run_command

    try:
        status = run_command(sys.argv[1:])
    finally:  # an error that nobody can be told of, too
        finish()
    sys.exit(status)


if __name__ == "__main__":
    main()
