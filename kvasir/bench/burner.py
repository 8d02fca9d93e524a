"""A process that wants a share of one CPU: ``python -m kvasir.bench.burner SHARE``.

Prints a line when it begins, and its CPU seconds when its standard input is closed.
"""

from __future__ import annotations

import sys
import threading
import time

PERIOD = 0.004
"""Seconds: shorter than a time slice of most schedulers."""


def burn(share: float, ended: threading.Event) -> float:
    """CPU seconds used. What it did not get in time it asks for again, of one second at most."""
    start, began = time.perf_counter(), time.process_time()
    while not ended.is_set():
        due = share * (time.perf_counter() - start)
        while time.process_time() - began < due:
            pass
        time.sleep(PERIOD * (1 - share))
    return time.process_time() - began


def main() -> None:
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    print("burning", flush=True)
    print(burn(float(sys.argv[1]), ended))


if __name__ == "__main__":
    main()
