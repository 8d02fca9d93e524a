"""The servers of engines, each started by its own command."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvasir.bench.fingerprint import fingerprint

PORT = 18331
START_SECONDS = 300
CONTEXT = 2304
MAX_REQUESTS = 64
VLLM_PRELOADED = ("libtcmalloc_minimal.so.4", "libiomp5.so")


@dataclass(frozen=True)
class PeerServer:
    """``env`` is added to the environment; ``port`` is in its command. ``cannot``: fields of
    requests that it does not survive."""

    name: str
    version: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = PORT
    cannot: frozenset[str] = frozenset()

    @contextmanager
    def running(self) -> Iterator[None]:
        """From the first answer on; ends with its children, whose CPU time is ours then."""
        if _answers(self.port):
            sys.exit(f"port {self.port} is taken")
        _adopt_orphans()
        process = subprocess.Popen(
            self.command,
            env={**os.environ, **self.env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + START_SECONDS
            while not _completes(self.port):
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"{self.name} did not start")
                time.sleep(0.1)
            yield
        finally:
            _end(process, self.port)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _completes(port: int) -> bool:
    """A server may take connections long before it has loaded."""
    body = json.dumps({"model": "m", "prompt": [5], "max_tokens": 1, "stream": True}).encode()
    url = f"http://127.0.0.1:{port}/v1/completions"
    asked = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=START_SECONDS) as answer:
            return b"data: " in answer.read()
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes], port: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
    end = time.monotonic() + 20
    with suppress(ChildProcessError):  # those that outlived it were killed with its group
        while time.monotonic() < end:
            os.waitpid(-1, os.WNOHANG)
            time.sleep(0.01)
    while _answers(port):
        time.sleep(0.1)


def _adopt_orphans() -> None:
    """Processes whose parents ended become children of this one (PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(36, 1)


def with_servers(parser: argparse.ArgumentParser, *others: str) -> None:
    """Adds what every comparison of servers is told. ``others``: engines that run from a Python
    with a folder of the model."""
    parser.add_argument("--kvasir", type=Path, required=True, metavar="MODEL")
    pairs = {"--llama-server": ("PATH", "MODEL")}
    pairs |= {f"--{name}": ("PYTHON", "MODEL") for name in others}
    for flag, words in pairs.items():
        parser.add_argument(flag, action="append", nargs=2, type=Path, default=[], metavar=words)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", required=True, help="name below bench/results")


def kvasir(model: Path, threads: int, *options: str, port: int = PORT) -> PeerServer:
    words = [sys.executable, "-m", "kvasir", "serve", str(model), "--threads", str(threads)]
    words += ["--port", str(port), "--served-model-name", "m", "--max-model-len", str(CONTEXT)]
    words += ["--max-num-seqs", str(MAX_REQUESTS), *options]
    commit = fingerprint()["commit"]
    name = " ".join((f"Kvasir, {model.name}", *options))
    return PeerServer(name, f"Kvasir {commit}", tuple(words), port=port)


def llama_server(
    binary: Path,
    model: Path,
    threads: int,
    *options: str,
    n_slots: int = MAX_REQUESTS,
    n_context: int = 512,
) -> PeerServer:
    """``n_context``: tokens of each of its slots."""
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "version" in line]
    n, words = str(threads), [str(binary), "-m", str(model)]
    words += ["-t", n, "-tb", n, "-c", str(n_slots * n_context), "-np", str(n_slots)]
    words += ["-b", "2048", "-fa", "on", "--no-webui", "--alias", "m"]
    words += ["--host", "127.0.0.1", "--port", str(PORT), *options]
    version = lines[0].strip() if lines else "version unknown"
    return PeerServer(f"llama-server, {model.name}", f"llama.cpp {version}", tuple(words))


def openvino(python: Path, model: Path, threads: int) -> PeerServer:
    script = Path(__file__).with_name("openvino_server.py")
    words = (str(python), str(script), str(model), str(PORT), str(threads))
    version = f"OpenVINO GenAI {_version(python, 'openvino-genai')}"
    return PeerServer(f"OpenVINO, {model.name}", version, words)


def vllm(python: Path, model: Path, threads: int, backend: str = "auto") -> PeerServer:
    """``backend``: who makes the masks of its grammars. One process computes, which is fastest on
    few cores; what its page on CPUs wants preloaded is, where it lies in ``lib`` beside
    ``python``. On CPUs the engine of 0.32 ends at a prompt in chunks whose request has a seed."""
    words = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    words += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(PORT)]
    words += ["--max-model-len", str(CONTEXT), "--dtype", "bfloat16", "--enable-prefix-caching"]
    words += ["--max-num-seqs", str(MAX_REQUESTS), "--generation-config", "vllm"]
    words += ["--structured-outputs-config", json.dumps({"backend": backend})]
    words += ["--distributed-executor-backend", "uni"]
    preloaded = [python.parent.parent / "lib" / name for name in VLLM_PRELOADED]
    env = {
        "LD_PRELOAD": ":".join(str(path) for path in preloaded if path.exists()),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}" if threads > 1 else "0",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    version = f"vLLM {_version(python, 'vllm-cpu')}"
    name = f"vLLM, {model.name}" + (f", {backend}" if backend != "auto" else "")
    return PeerServer(name, version, tuple(words), env, cannot=frozenset({"seed"}))


def _version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "version unknown"
