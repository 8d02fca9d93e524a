"""From a process's start to its first token: what ``kvasir run`` and a new server make wait."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import Meter
from kvasir.bench.http_client import Target, complete
from kvasir.bench.planned import planned_executor
from kvasir.bench.report import report, summary
from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions, describe
from kvasir.core.errors import KvasirError

KVASIR = (sys.executable, "-m", "kvasir")
PROMPT = "The capital of France is"
HOST = "127.0.0.1"
NAME = "start"
LIMIT_SECONDS = 120.0
_POLL_SECONDS = 0.002

Measure = Callable[[str, Sequence[str]], float]


def measure_start(options: EngineOptions, repeat: int) -> dict[str, Any]:
    """The report of ``repeat`` starts of each kind, after one that warms the file cache.

    Times are seconds, from before the process exists to the first byte of an answer: on standard
    output of ``kvasir run``, as a streamed token of ``kvasir serve`` for a client that connects
    as soon as it can. Raises KvasirError with the words of a process that fails.
    """
    source = load_model(options.model, options.mmproj).source
    engine = {"model": source.name, "weights_hash": source.content_hash, "options": flags(options)}
    ways = {"run": run_once, "serve": serve_once}
    results = {
        name: _repeated(measure, str(source.origin), flags(options), repeat)
        for name, measure in ways.items()
    }
    ceilings = measure_ceilings(planned_executor(options).threads)
    return report("start", engine, results, ceilings=ceilings)


def flags(options: EngineOptions) -> list[str]:
    """The words of a command line that choose what differs from the defaults, without the model."""
    words: list[str] = []
    for info in describe(EngineOptions):
        value = getattr(options, info.name)
        if info.name == "model" or value == info.default:
            continue
        if info.kind == "flag":
            words.append(info.flag if value else f"--no-{info.flag[2:]}")
        else:
            words += [info.flag, str(value)]
    return words


def _repeated(measure: Measure, model: str, words: Sequence[str], repeat: int) -> dict[str, Any]:
    measure(model, words)
    seconds, foreign = [], []
    for _ in range(repeat):
        with Meter() as meter:
            seconds.append(measure(model, words))
        foreign.append(meter.foreign)
    return {"seconds_to_first_token": summary(seconds, 4), "foreign": foreign}


def environment() -> dict[str, str]:
    """Of this process, but compiled Python is kept, as it is where Kvasir is installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_once(model: str, words: Sequence[str]) -> float:
    """Seconds until ``kvasir run`` says something."""
    command = [*KVASIR, "run", model, PROMPT, "--max-tokens", "1", *words]
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        if process.stdout is not None:
            process.stdout.read(1)
        seconds = time.perf_counter() - start
        _, said = process.communicate(timeout=LIMIT_SECONDS)
    if process.returncode != 0:
        raise _failed("run", said)
    return seconds


def serve_once(model: str, words: Sequence[str]) -> float:
    """Seconds until a new server streams its first token."""
    start = time.perf_counter()
    with running_server(model, words) as server:
        return server.first_token() - start


@dataclass(frozen=True, slots=True)
class RunningServer:
    process: subprocess.Popen[bytes]
    port: int

    def wait(self) -> None:
        """Until it takes connections. Raises KvasirError when it ends before."""
        if not _wait_port(self.port, self.process):
            raise KvasirError("the server ended before it took connections")

    def first_token(self) -> float:
        """When it came, by ``time.perf_counter``. Raises KvasirError when the server ends or
        refuses."""
        self.wait()
        return asyncio.run(_first_token(self.port))


@contextmanager
def running_server(model: str, words: Sequence[str]) -> Iterator[RunningServer]:
    """A server that is starting; it ends with the block. Raises KvasirError with its last words
    when the block fails."""
    port = free_port()
    command = [*KVASIR, "serve", model, "--host", HOST, "--port", str(port)]
    command += [*words, "--served-model-name", NAME, "--log-level", "warning"]
    with running(command, port) as server:
        yield server


@contextmanager
def running(command: Sequence[str], port: int) -> Iterator[RunningServer]:
    """What ``command`` starts to listen on ``port``; see ``running_server``."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) as process:
        failure: KvasirError | None = None
        try:
            yield RunningServer(process, port)
        except KvasirError as error:
            failure = error
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=LIMIT_SECONDS)
    if failure is not None:
        raise KvasirError(f"{failure.message} {said.decode(errors='replace')[-500:].strip()}")


async def _first_token(port: int) -> float:
    """When it came, by ``time.perf_counter``."""
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 1, "ignore_eos": True, "stream": True}
    usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    answer = await complete(Target(HOST, port, "/v1"), {**body, **usage})
    if answer.error:
        raise KvasirError(f"kvasir serve answered: {answer.error}")
    return answer.started + answer.tokens[0]


def _wait_port(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether the server takes connections; False when it ended."""
    deadline = time.perf_counter() + LIMIT_SECONDS
    while process.poll() is None and time.perf_counter() < deadline:
        try:
            socket.create_connection((HOST, port)).close()
            return True
        except OSError:
            time.sleep(_POLL_SECONDS)
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _failed(command: str, said: bytes) -> KvasirError:
    return KvasirError(f"kvasir {command} failed: {said.decode(errors='replace')[-500:].strip()}")
