"""What an attack does to others: two streams and a health probe, heard by a process of its own.

``watching(server)`` notes what they hear while nothing else happens; its ``during(attack)`` runs an
attack beside them and says what they heard then. ``Verdict.check`` holds the bounds:

    with watching(server) as watch:
        watch.during(attack).check()

The streams sing the same songs again and again; each is compared with the one sung alone, byte by
byte. A gap is the time between two pieces of one stream. Bounds are measured in the same run, so
that a slow or crowded machine moves both sides.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from tests.e2e.harness import GIVEN_BACK, PATIENCE, ROOT, Server, post_bytes, wait_until

SONGS: tuple[dict[str, Any], ...] = (
    {"prompt": "a greedy canary sings", "temperature": 0},
    {"prompt": "a seeded canary sings", "seed": 7},
)
N_TOKENS = 256
GAP_SLACK = 0.050
"""Seconds that the longest gap may exceed twice the quiet p99 by."""
HEALTH_SECONDS = 0.050
RSS_SLACK = 16 * 2**20
RSS_SHARE = 0.02
PROBE_SECONDS = 0.01
"""Between two looks at the health."""
FULL = b'"status":"unwell: queue_depth"'
"""What the health says while the queue is full, and for no other reason: attacks may fill it."""
ATTEMPTS = 3
"""The best of so many counts: a machine may stop for longer than any bound."""
ATTEMPTS_SECONDS = 30.0
"""After which no other attempt begins."""
JUDGES_TIMES = "KVASIR_QUIET" in os.environ
QUIET_SECONDS = 2.0 if JUDGES_TIMES else 0.2
"""Whose gaps bound those of an attack."""
MAX_FOREIGN = 0.3
"""CPUs that others may use before times say nothing."""


@dataclass
class Heard:
    """What arrived while somebody listened; times are seconds."""

    songs: list[list[str]] = field(default_factory=lambda: [[] for _ in SONGS])
    """Texts of the complete songs of each stream."""
    gaps: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    """How long each answer took."""
    n_refused: int = 0
    """Songs that found the queue full."""
    wrong: list[str] = field(default_factory=list)
    """Answers that should not be."""


def most(rss: int) -> float:
    """Bytes of a process that may be left by an attack on one that had ``rss``."""
    return rss * (1 + RSS_SHARE) + RSS_SLACK


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


@dataclass(frozen=True)
class Verdict:
    quiet: Heard
    attacked: Heard
    alone: list[str]
    """Each song as it was sung alone."""
    rss: tuple[int, int, int, int]
    """Bytes of the API process and the engine before the attack, and the same after it."""
    foreign: float
    """CPUs that others used meanwhile."""

    @property
    def bound(self) -> float:
        return 2 * p99(self.quiet.gaps) + GAP_SLACK

    @property
    def late(self) -> list[str]:
        """Every bound of a time that does not hold, with its figures."""
        found = []
        gap, health = max(self.attacked.gaps), max(self.attacked.health)
        if gap > self.bound:
            found.append(f"a gap of {gap * 1e3:.0f} ms, the bound is {self.bound * 1e3:.0f} ms")
        if health > HEALTH_SECONDS:
            found.append(f"/health took {health * 1e3:.0f} ms")
        return found

    @property
    def faults(self) -> list[str]:
        """Every other bound that does not hold."""
        found = list(self.attacked.wrong)
        if self.attacked.n_refused:
            found.append(f"{self.attacked.n_refused} songs were refused")
        for alone, songs in zip(self.alone, self.attacked.songs, strict=True):
            if any(song != alone for song in songs):
                found.append("a song changed")
        for name, before, after in zip(("API", "engine"), self.rss[:2], self.rss[2:], strict=True):
            if after > most(before):
                found.append(f"{name}: {before >> 20} MiB before, {after >> 20} MiB after")
        return found

    def __str__(self) -> str:
        gap, health = max(self.attacked.gaps, default=0.0), max(self.attacked.health, default=0.0)
        mib = [size >> 20 for size in self.rss]
        return (
            f"gap {gap * 1e3:.1f} of {self.bound * 1e3:.1f} ms, health {health * 1e3:.1f} ms, "
            f"API {mib[0]} -> {mib[2]} MiB, engine {mib[1]} -> {mib[3]} MiB, "
            f"{sum(map(len, self.attacked.songs))} songs, {self.attacked.n_refused} refused, "
            f"foreign {self.foreign:.2f}"
        )


class Watch:
    """Canaries that sing at a server."""

    def __init__(
        self, server: Server, listener: subprocess.Popen[str], rest: tuple[int, int] | None = None
    ) -> None:
        """``rest``: bytes of the API process and the engine before any attack; None: those before
        each attack."""
        self._server = server
        self._rest = rest
        self._listener = listener
        self._engine = psutil.Process(server.engine_pid())
        self.report()
        time.sleep(QUIET_SECONDS)
        self.quiet = self.report()
        wait_until(lambda: not self._short(self.quiet))
        self.alone = [songs[0] for songs in self.quiet.songs]
        assert all(
            set(songs) == {alone} for songs, alone in zip(self.quiet.songs, self.alone, strict=True)
        )

    def _short(self, heard: Heard) -> bool:
        """Adds what was heard since, on a machine too busy for a song in the time."""
        if all(heard.songs):
            return False
        more = self.report()
        for mine, others in zip(heard.songs, more.songs, strict=True):
            mine.extend(others)
        heard.gaps += more.gaps
        heard.health += more.health
        return True

    def forget_rest(self) -> None:
        """From now on memory is compared with that before each attack."""
        self._rest = None

    def report(self) -> Heard:
        """What was heard since the last report."""
        assert self._listener.stdin is not None and self._listener.stdout is not None
        self._listener.stdin.write("report\n")
        self._listener.stdin.flush()
        return Heard(**json.loads(self._listener.stdout.readline()))

    def during(self, attack: Callable[[Server], object]) -> Verdict:
        """Runs ``attack``, and waits until what it asked for is over."""
        before = self._rest or (self._server.rss(), self._engine.memory_info().rss)
        self.report()
        began, busy = time.perf_counter(), self._foreign_seconds()
        attack(self._server)
        self._settle()
        attacked = self.report()
        wait_until(lambda: not self._short(attacked) and bool(attacked.health))
        foreign = (self._foreign_seconds() - busy) / (time.perf_counter() - began)
        with suppress(AssertionError):  # free memory goes back to the system a moment later
            wait_until(lambda: self._server.rss() <= most(before[0]), GIVEN_BACK)
        after = self._server.rss(), self._engine.memory_info().rss
        return Verdict(self.quiet, attacked, self.alone, (*before, *after), foreign)

    def _foreign_seconds(self) -> float:
        """CPU time of all processes but the server's, the canaries' and this one."""
        cpus = psutil.cpu_times()
        busy = cpus.user + cpus.system + getattr(cpus, "nice", 0.0) + getattr(cpus, "steal", 0.0)
        pids = (self._server.process.pid, self._engine.pid, self._listener.pid, os.getpid())
        own = [psutil.Process(pid).cpu_times() for pid in pids]
        return float(busy - sum(times.user + times.system for times in own))

    def _settle(self) -> None:
        """Until nothing but the songs runs or waits."""
        wait_until(lambda: self._server.metric("kvasir_num_requests_waiting") == 0)
        wait_until(lambda: self._server.metric("kvasir_num_requests_running") <= len(SONGS))

    def holds(self, attack: Callable[[Server], object]) -> Verdict:
        """The verdict of the first attempt that keeps every bound; fails when none does. Bounds of
        times are for a quiet machine, ``make test-quiet``: elsewhere one attempt has to keep the
        others, and with others busy there the test is skipped."""
        verdicts: list[Verdict] = []
        began = time.monotonic()
        while len(verdicts) < ATTEMPTS and time.monotonic() < began + ATTEMPTS_SECONDS:
            verdict = self.during(attack)
            assert not verdict.faults, f"{'; '.join(verdict.faults)} ({verdict})"
            if not verdict.late or not JUDGES_TIMES:
                return verdict
            verdicts.append(verdict)
        best = min(verdicts, key=lambda verdict: verdict.foreign)
        if best.foreign > MAX_FOREIGN:
            pytest.skip(f"others used {best.foreign:.1f} CPUs: {'; '.join(best.late)}")
        raise AssertionError(f"{'; '.join(best.late)} ({best})")


@contextmanager
def watching(server: Server, rest: tuple[int, int] | None = None) -> Iterator[Watch]:
    """Canaries sing at ``server`` while the block runs; ``rest`` as in ``Watch``."""
    command = [sys.executable, "-m", "tests.e2e.canaries", str(server.port), server.model]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as listener:  # type: ignore[call-overload]
        try:
            yield Watch(server, listener, rest)
        finally:
            listener.communicate(timeout=PATIENCE)


class _Listener:
    """The process that sings and listens."""

    def __init__(self, port: int, model: str) -> None:
        self._port = port
        self._model = model
        self._lock = threading.Lock()
        self._heard = Heard()
        self._ended = threading.Event()

    def run(self) -> None:
        threads = [threading.Thread(target=self._sing, args=(i,)) for i in range(len(SONGS))]
        threads.append(threading.Thread(target=self._probe))
        for thread in threads:
            thread.start()
        for _ in sys.stdin:
            with self._lock:
                heard, self._heard = self._heard, Heard()
            print(json.dumps(vars(heard)), flush=True)
        self._ended.set()
        for thread in threads:
            thread.join()

    def _sing(self, number: int) -> None:
        body = {
            "model": self._model,
            "stream": True,
            "max_tokens": N_TOKENS,
            "ignore_eos": True,
            "priority_class": "realtime",
            "user": "canary",
            **SONGS[number],
        }
        asked = post_bytes("/v1/completions", json.dumps(body).encode(), "Connection: close")
        while not self._ended.is_set():
            try:
                self._one_song(number, asked)
            except OSError as error:
                self._note_wrong(f"a song broke off: {error}")

    def _one_song(self, number: int, asked: bytes) -> None:
        data, gaps, last = b"", [], 0.0
        with socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE) as sock:
            sock.sendall(asked)
            while part := sock.recv(2**16):
                now = time.perf_counter()
                if last and b"data: {" in part:
                    gaps.append(now - last)
                last = now if last or b"data: {" in part else 0.0
                data += part
        with self._lock:
            self._heard.gaps += gaps
        if data.startswith(b"HTTP/1.1 200"):
            with self._lock:
                self._heard.songs[number].append(_text(data))
        elif data.startswith(b"HTTP/1.1 429"):
            with self._lock:
                self._heard.n_refused += 1
            time.sleep(PROBE_SECONDS)
        else:
            self._note_wrong(f"a song was answered with {data[:200]!r}")

    def _probe(self) -> None:
        asked = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        while not self._ended.wait(PROBE_SECONDS):
            began, data = time.perf_counter(), b""
            try:
                with socket.create_connection(("127.0.0.1", self._port), PATIENCE) as sock:
                    sock.sendall(asked)
                    while part := sock.recv(2**16):
                        data += part
            except OSError as error:
                self._note_wrong(f"/health: {error}")
            took = time.perf_counter() - began
            with self._lock:
                self._heard.health.append(took)
            if not data.startswith(b"HTTP/1.1 200") and FULL not in data:
                self._note_wrong(f"/health was answered with {data[:600]!r}")

    def _note_wrong(self, what: str) -> None:
        with self._lock:
            self._heard.wrong.append(what)


def _text(data: bytes) -> str:
    """The pieces of a stream's text, or what else it ended with."""
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    if not events or events[-1].strip() != b"[DONE]":
        return f"no end: {data[-200:]!r}"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


if __name__ == "__main__":
    _Listener(int(sys.argv[1]), sys.argv[2]).run()
