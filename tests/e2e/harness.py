"""A real server process, raw sockets to attack it, and canaries that must not notice."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import psutil

from kvasir.serve.allocator import GIVE_BACK_SECONDS

ROOT = Path(__file__).parents[2]
FAULT_ENGINE = "tests.e2e.fault_engine"
REAL_ENGINE = "kvasir.serve.engine_process"
MODEL = "toy"
PATIENCE = 60.0
"""Seconds that anything may take on a busy machine before a test gives up."""
AT_ONCE = 10.0
"""Seconds that still count as at once there: what is waited for would last longer otherwise."""


def step_back() -> None:
    """Of a thread that attacks: attackers have machines of their own; here the server goes
    first."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


@dataclass
class Server:
    """A running server; ``lines`` are what it logged."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str]
    model: str = MODEL
    http: httpx.Client = field(
        default_factory=lambda: httpx.Client(
            timeout=PATIENCE,
            trust_env=False,
            verify=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )
    )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> httpx.Response:
        return self.http.get(self.url + path)

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        return self.http.post(self.url + path, json={"model": self.model, **body}, headers=headers)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of ``name`` whose labels include ``labels``."""
        return self.metrics(name, **labels)[0]

    def metrics(self, *names: str, **labels: str) -> list[float]:
        """As ``metric``, of one look: between two a request may have gone from one to another."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = self.get("/metrics").text.splitlines()
        totals = []
        for name in names:
            family = name.removesuffix("_total")
            kinds = [line for line in lines if re.match(rf"# TYPE {family}(_total)? ", line)]
            assert kinds, f"there is no metric {name!r}"
            found = [line for line in lines if re.match(rf"{name}[{{ ]", line)]
            found = [line for line in found if all(label in line for label in wanted)]
            totals.append(sum(float(line.rsplit(" ", 1)[1]) for line in found))
        return totals

    def wait_idle(self) -> None:
        """No request runs or waits and every block is free."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        wait_until(lambda: not any(self.metrics(*(f"kvasir_{name}" for name in names))))

    def rss(self) -> int:
        """Bytes of the API process."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def engine_pid(self) -> int:
        """Of the newest one that lives; a server has other children, too."""
        children = psutil.Process(self.process.pid).children()
        alive = [x for x in children if x.status() != psutil.STATUS_ZOMBIE]
        others = {"kvasir.grammar.trial", "kvasir.vision.reader"}
        engines = [x for x in alive if others.isdisjoint(x.cmdline())]
        return int(max(engines, key=lambda x: (x.create_time(), x.pid)).pid)


def wait_until(condition: Any, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


@contextmanager
def running_server(
    model: Path,
    *,
    executor: str = "fake",
    module: str | None = None,
    name: str = MODEL,
    engine: dict[str, Any] | None = None,
    **serve: Any,
) -> Iterator[Server]:
    """``serve`` and ``engine`` are options; ``module`` is the engine's program.

    Without it the fake executor runs in ``fault_engine``, any other in the product's own program;
    "native" is the cpu executor in ``fault_engine``.
    """
    module = module or (FAULT_ENGINE if executor in ("fake", "native") else REAL_ENGINE)
    executor = "cpu" if executor == "native" else executor
    options = {
        "model": str(model),
        "executor": executor,
        "served_model_name": name,
        **(engine or {}),
    }
    serve = {"port": 0, "health_probe_ms": round(1000 * PATIENCE), **serve}
    given = {"serve": serve, "engine": options, "module": module}
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.fault_server", json.dumps(given)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    started: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_log, args=(process.stderr, lines, started))
    reader.start()
    try:
        port = started.get(timeout=PATIENCE)
        assert port is not None, "the server did not start:\n" + "".join(lines)
        server = Server(process, port, lines, name)
        with server.http:
            yield server
    except BaseException as error:
        error.add_note(f"the server (exit status {process.poll()}) said: {''.join(lines[-20:])}")
        raise
    finally:
        process.send_signal(signal.SIGTERM) if process.poll() is None else None
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stderr.close()


def _read_log(stream: Any, lines: list[str], started: queue.SimpleQueue[int | None]) -> None:
    for line in stream:
        lines.append(line)
        found = re.search(r"serving .* at (?:http://127\.0\.0\.1:(\d+)|unix:\S+)/v1", line)
        if found:
            started.put(int(found.group(1) or 0))
    started.put(None)


def n_open_files(server: Server) -> int:
    return int(psutil.Process(server.process.pid).num_fds())


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port for a process that cannot say which it was given: nobody else gets it meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class HasPort(Protocol):
    @property
    def port(self) -> int: ...


def connect(server: HasPort, timeout: float = PATIENCE) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout)


def head(method: str, target: str, *headers: str, host: str | None = "localhost") -> bytes:
    """The bytes of a request's head."""
    hosts = [f"Host: {host}"] if host is not None else []
    return "\r\n".join([f"{method} {target} HTTP/1.1", *hosts, *headers, "", ""]).encode("latin-1")


def post_head(path: str, length: int, *headers: str) -> bytes:
    fixed = ("Content-Type: application/json", f"Content-Length: {length}")
    return head("POST", path, *fixed, *headers)


def post_bytes(path: str, body: bytes, *headers: str) -> bytes:
    return post_head(path, len(body), *headers) + body


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)

    def json(self) -> Any:
        return json.loads(self.body)


def read_reply(sock: socket.socket) -> Reply | None:
    """One response with Content-Length or chunks; None when the connection ends without one."""
    with sock.makefile("rb") as stream:
        try:
            line = stream.readline()
        except (ConnectionResetError, TimeoutError):
            return None
        if not line:
            return None
        headers: dict[str, str] = {}
        while (row := stream.readline().strip()) != b"":
            key, _, value = row.decode("latin-1").partition(":")
            headers[key.lower()] = value.strip()
        return Reply(int(line.split()[1]), headers, _read_body(stream, headers))


def _read_body(stream: Any, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return bytes(stream.read(int(headers.get("content-length", "0"))))
    body = b""
    while size := int(stream.readline() or b"0", 16):
        body += stream.read(size)
        stream.readline()
    return body


def exchange(server: Server, data: bytes, timeout: float = PATIENCE) -> Reply | None:
    """Send ``data``, read one response."""
    with connect(server, timeout) as sock:
        with suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        return read_reply(sock)


GIVEN_BACK = 10 * GIVE_BACK_SECONDS
"""Seconds until the server has surely given free memory back."""
RSS_SLACK = 16 * 2**20
"""Bytes that buffers of the event loop and the allocator may keep after the largest request."""
CANARIES: tuple[dict[str, Any], ...] = (
    {"prompt": "a greedy canary sings", "temperature": 0, "max_tokens": 96, "ignore_eos": True},
    {"prompt": "a seeded canary sings", "seed": 7, "max_tokens": 96, "ignore_eos": True},
)


class Refused(Exception):
    """The code of an answer that is no stream."""


def sing(server: Server, song: dict[str, Any]) -> list[str]:
    """The pieces of text of one stream, joined, then its finish reason. Raises Refused."""
    text, finish = [], ""
    body = {"model": server.model, "stream": True, **song}
    with server.http.stream("POST", server.url + "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise Refused(json.loads(response.read())["error"]["code"])
        # A silence has comments.
        lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        choice = json.loads(line.removeprefix("data: "))["choices"][0]
        text.append(choice["text"])
        finish = choice["finish_reason"] or finish
    return ["".join(text), finish]


def bare(body: bytes) -> bytes:
    """An answer, streamed or whole, without what differs between two of the same: ids, times, and
    what the cache gave."""
    body = re.sub(rb'"([a-z_]*id)":"[a-z]+[-_][^"]*"', rb'"\1":""', body)
    body = re.sub(rb'"(created\w*|completed_at|\w*_duration)":("[^"]*"|[\d.]+)', rb'"\1":0', body)
    return re.sub(rb'"(\w*cached?_\w*tokens|cache_read_input_tokens)":\d+', rb'"\1":0', body)


def last_event(server: Server, body: dict[str, Any]) -> str:
    """The last event of a stream, however it ends."""
    asked = {"model": server.model, "stream": True, **body}
    with server.http.stream("POST", server.url + "/v1/completions", json=asked) as response:
        return [line for line in response.iter_lines() if line][-1]


def first_refusal(server: Server, path: str) -> httpx.Response:
    """Asks until the answer is not 200, which a dying server gives for a second."""
    while (reply := server.get(path)).status_code == 200:
        time.sleep(0.02)
    return reply


def n_known(server: Server) -> float:
    """Choices that the engine has."""
    return sum(server.metrics("kvasir_num_requests_waiting", "kvasir_num_requests_running"))


@contextmanager
def canaries(
    server: Server, pardoned: frozenset[str] = frozenset(), rss_slack: int = RSS_SLACK
) -> Iterator[None]:
    """Two streams sing alone, then again and again while the block runs: every time the same bytes.

    ``pardoned`` are codes with which a song may be refused. Afterwards the server is idle, all
    blocks are free, the same process lives, and holds at most ``rss_slack`` bytes more, and 2 %.
    """
    solo = [sing(server, song) for song in CANARIES]
    rss = server.rss()
    stop = threading.Event()

    def keep_singing(song: dict[str, Any]) -> list[list[str]]:
        heard: list[list[str]] = []
        while not (stop.is_set() and heard):
            try:
                heard.append(sing(server, song))
            except Refused as refused:
                if refused.args[0] not in pardoned:
                    raise
        return heard

    with ThreadPoolExecutor(len(CANARIES)) as pool:
        songs: list[Future[list[list[str]]]] = [
            pool.submit(keep_singing, song) for song in CANARIES
        ]
        try:
            yield
        finally:
            stop.set()
        for alone, song in zip(solo, songs, strict=True):
            assert all(heard == alone for heard in song.result())
    assert server.process.poll() is None
    server.wait_idle()
    with suppress(AssertionError):  # free memory goes back to the system a moment later
        wait_until(lambda: server.rss() < rss * 1.02 + rss_slack, GIVEN_BACK)
    assert server.rss() < rss * 1.02 + rss_slack


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
