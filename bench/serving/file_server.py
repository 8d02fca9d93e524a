"""One file over HTTP, in a process of its own: ranges, and a line that all connections share."""

from __future__ import annotations

import hashlib
import http.server
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PIECE = 1 << 20
"""Bytes of a write without a line; a fiftieth of a second's with one."""


@dataclass(frozen=True)
class FileServer:
    url: str
    n_bytes: int
    digest: str
    counter: Any
    """Shared memory."""

    def sent(self) -> int:
        """Bytes of the file, over all connections."""
        return int(self.counter.value)


class Line:
    """``rate`` bytes a second, whoever takes them; 0: as fast as it goes."""

    def __init__(self, rate: int, counter: Any) -> None:
        self.piece = rate // 50 or PIECE
        self._seconds = self.piece / rate if rate else 0.0
        self._counter = counter
        self._lock = threading.Lock()
        self._next = 0.0

    def take(self) -> None:
        """Waits until a piece is due."""
        if not self._seconds:
            return
        with self._lock:
            self._next = max(self._next, time.monotonic()) + self._seconds
            due = self._next
        time.sleep(max(0.0, due - time.monotonic()))

    def tell(self, n: int) -> None:
        with self._counter.get_lock():
            self._counter.value += n


def _handler(path: Path, line: Line) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            total = path.stat().st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, total)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{total}")
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            self.wfile.flush()
            with path.open("rb") as file:
                self._send(file.fileno(), start, end)

        def _send(self, file: int, at: int, end: int) -> None:
            try:
                while at < end:
                    line.take()
                    n = os.sendfile(self.connection.fileno(), file, at, min(line.piece, end - at))
                    line.tell(n)
                    at += n
            except OSError:  # who asked is gone
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler


def _serve(path: Path, rate: int, counter: Any, said: Any) -> None:
    handler = _handler(path, Line(rate, counter))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        said.send(server.server_address[1])
        server.serve_forever()


@contextmanager
def serving_file(path: Path, n_bytes: int, rate: int = 0) -> Iterator[FileServer]:
    """A server of ``n_bytes`` that nobody can compress, which are written to ``path``; ``rate``:
    bytes a second of all connections together."""
    data = hashlib.shake_256(b"a file").digest(PIECE)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for i in range(n_bytes // PIECE):
            block = i.to_bytes(8, "little") + data[8:]
            digest.update(block)
            file.write(block)
    kind = multiprocessing.get_context("spawn")
    counter = kind.Value("q", 0)
    ours, theirs = kind.Pipe()
    process = kind.Process(target=_serve, args=(path, rate, counter, theirs), daemon=True)
    process.start()
    try:
        port = ours.recv()
        yield FileServer(
            f"http://127.0.0.1:{port}", n_bytes, f"sha256:{digest.hexdigest()}", counter
        )
    finally:
        process.kill()
        process.join()
