"""The engine process with a disk that believes itself fast and takes as long as ``SLOW_DISK``, a
file, says for each read."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from kvasir.exec.disk.store import DiskStore
from kvasir.kv.tier import Fetch
from kvasir.serve.engine_process import run

read = DiskStore._read


def slowly(store: DiskStore, fetch: Fetch) -> None:
    time.sleep(float(Path(os.environ["SLOW_DISK"]).read_text()))
    read(store, fetch)


if __name__ == "__main__":
    DiskStore._read = slowly  # type: ignore[method-assign]
    DiskStore.seconds = lambda store, n_bytes: 0.0  # type: ignore[method-assign]
    sys.exit(run())
