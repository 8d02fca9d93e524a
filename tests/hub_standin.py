"""A hub of models on this machine, which can be made to fail: cut, stall, lie, redirect, refuse."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHUNK = 1 << 16


@dataclass
class Faults:
    """Of the next answers with bytes of files. Each counter goes down by one a time."""

    cuts: int = 0
    """Answers that end after ``cut_bytes``."""
    cut_bytes: int = 100_000
    stalls: int = 0
    """Answers that stop after ``cut_bytes`` and keep the connection."""
    busy: int = 0
    """Answers with status 503."""
    busy_for: str = "0"
    """What they say in Retry-After."""
    says: str = ""
    """Content-Range, where it is not what is sent."""
    knows_ranges: bool = True
    flips: bool = False
    """Every answer has one wrong byte."""
    grown: int = 0
    """Bytes that the file is said to have more."""
    redirects_to: str = ""
    """Another host that has the bytes."""
    pause: float = 0.0
    """Seconds after each 64 KiB."""


@dataclass
class StandIn:
    """``files`` by repository and name."""

    files: Mapping[str, Mapping[str, bytes]]
    faults: Faults = field(default_factory=Faults)
    token: str = ""
    """Without it nothing is told."""
    gated: bool = False
    commit: str = COMMIT
    sent: int = 0
    """Bytes of files, so far."""
    asked: list[str] = field(default_factory=list)
    """Paths, in their order."""
    tokens: list[str] = field(default_factory=list)
    """Authorization of each question for a file; empty where there was none."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def take(self, counter: str) -> bool:
        with self.lock:
            left = getattr(self.faults, counter)
            setattr(self.faults, counter, max(0, left - 1))
            return left > 0

    def listing(self, repo: str) -> dict[str, Any]:
        siblings = []
        for name, data in self.files[repo].items():
            sha = hashlib.sha256(data).hexdigest()
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            lfs = {"lfs": {"sha256": sha, "size": len(data), "pointerSize": 134}}
            is_large = name.endswith((".gguf", ".safetensors"))
            more = lfs if is_large else {}
            siblings.append({"rfilename": name, "size": len(data), "blobId": blob, **more})
        return {"id": repo, "sha": self.commit, "siblings": siblings}


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: StandIn
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        with hub.lock:
            hub.asked.append(path)
        said = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        if said is not None:
            self._say_repo(said[1], said[2])
            return
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if found is None or found[3] not in hub.files.get(found[1], {}):
            self._send(404, {"error": "not found"})
            return
        with hub.lock:
            hub.tokens.append(self.headers.get("Authorization", ""))
        if hub.faults.redirects_to:
            self._send(302, {}, {"Location": hub.faults.redirects_to + self.path})
        else:
            self._send_file(hub.files[found[1]][found[3]])

    def _say_repo(self, repo: str, revision: str | None) -> None:
        hub = self.hub
        is_known = self.headers.get("Authorization") == f"Bearer {hub.token}" or not hub.token
        if repo not in hub.files or not is_known:
            self._send(404, {"error": "no repo"}, {"X-Error-Code": "RepoNotFound"})
        elif hub.gated:
            self._send(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif revision not in (None, "main", hub.commit):
            self._send(404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send(200, hub.listing(repo))

    def _send(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, data: bytes) -> None:
        hub, faults = self.hub, self.hub.faults
        if hub.take("busy"):
            self._send(503, {"error": "busy"}, {"Retry-After": faults.busy_for})
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        total = len(data) + faults.grown
        start, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(data))
        if asked and faults.knows_ranges:
            self.send_response(206)
            self.send_header("Content-Range", faults.says or f"bytes {start}-{end - 1}/{total}")
        else:
            start, end = 0, len(data)
            self.send_response(200)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        body = bytearray(data[start:end])
        if faults.flips and body:
            body[len(body) // 2] ^= 1
        self._write(bytes(body))

    def _write(self, body: bytes) -> None:
        hub = self.hub
        is_cut, is_stalled = hub.take("cuts"), hub.take("stalls")
        if is_cut or is_stalled:
            body = body[: hub.faults.cut_bytes]
        try:
            for at in range(0, len(body), CHUNK):
                part = body[at : at + CHUNK]
                self.wfile.write(part)
                with hub.lock:
                    hub.sent += len(part)
                if hub.faults.pause:
                    time.sleep(hub.faults.pause)
            if is_stalled:
                self.rfile.read(1)  # until the client has enough of it
        except OSError:
            pass
        if is_cut or is_stalled:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None: ...


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of the tests."""


@contextmanager
def serving(hub: StandIn) -> Iterator[StandIn]:
    """``hub`` with its address, for as long as the block runs."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
