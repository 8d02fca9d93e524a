"""One cause each, done to a server: gives the answer that it slowed down, and for how many seconds,
by the client's clock."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.e2e.harness import PATIENCE, Server, post_bytes, wait_until
from tests.whys.asking import Asking, Heard, ask, choices

N_SLOTS = 4
N_WORDS = 40_000
"""Ids below are words."""


class Slowed(NamedTuple):
    heard: Heard
    truth: float


class Scene(NamedTuple):
    server: Server
    draw: random.Random
    folder: Path

    def words(self, n_tokens: int) -> list[int]:
        """A prompt that nobody had before."""
        return [self.draw.randrange(1000, N_WORDS) for _ in range(n_tokens)]

    def asking(self, n_prompt: int, n_tokens: int, **fields: object) -> Asking:
        return Asking(self.server, self.words(n_prompt), n_tokens, **fields)

    def ask(self, n_prompt: int, n_tokens: int, **fields: object) -> Heard:
        return ask(self.server, self.words(n_prompt), n_tokens, **fields)


def slots(scene: Scene) -> Slowed:
    lengths = [scene.draw.randrange(60, 110) for _ in range(N_SLOTS)]
    others = [scene.asking(20, n).begun() for n in lengths]
    heard = scene.ask(20, 10)
    return Slowed(heard, min(x.done().ended for x in others) - heard.sent)


def blocks(scene: Scene) -> Slowed:
    other = scene.asking(scene.draw.randrange(330, 380), 90).begun()
    heard = scene.ask(240, 10)
    return Slowed(heard, other.done().ended - heard.sent)


def turn(scene: Scene) -> Slowed:
    """All places are taken, and four of a higher class come later and go first."""
    others = [scene.asking(20, 30).begun() for _ in range(N_SLOTS)]
    slowed = scene.asking(20, 10, priority_class="batch")
    time.sleep(0.03)
    length = scene.draw.randrange(70, 120)
    later = [scene.asking(20, length, priority_class="realtime") for _ in range(N_SLOTS)]
    heard = slowed.done()
    free = min(x.done().ended for x in others)
    return Slowed(heard, min(x.done().ended for x in later) - free)


def prompt(scene: Scene) -> Slowed:
    heard = scene.ask(scene.draw.randrange(900, 1500), 8)
    return Slowed(heard, heard.first)


def others_prompts(scene: Scene) -> Slowed:
    n_tokens, size = 100, scene.draw.randrange(700, 1100)
    alone = scene.ask(20, n_tokens)
    slowed = scene.asking(20, n_tokens).begun()
    for _ in range(2):
        scene.ask(size, 1)
    heard = slowed.done()
    return Slowed(heard, heard.seconds - alone.seconds)


def preemption(scene: Scene) -> Slowed:
    elder = scene.asking(150, scene.draw.randrange(190, 240)).begun()
    heard = scene.ask(150, 150)
    elder.done()
    return Slowed(heard, heard.gap)


def disk(scene: Scene) -> Slowed:
    words, seconds = scene.words(320), scene.draw.uniform(0.3, 1.5)
    (scene.folder / "seconds").write_text("0")
    ask(scene.server, words, 4)
    for _ in range(3):
        scene.ask(380, 4)  # what memory had is on disk alone
    (scene.folder / "seconds").write_text(f"{seconds}")
    return Slowed(ask(scene.server, words, 8), seconds)


def grammar(scene: Scene) -> Slowed:
    names = ["".join(scene.draw.choices(string.ascii_letters, k=12)) for _ in range(40)]
    counts = [scene.draw.randrange(20, 60) for _ in names]
    each = [{"type": "string", "pattern": f"^[a-z]{{3,{n}}}(-[0-9]{{1,{n}}})+$"} for n in counts]
    schema = {
        "type": "object",
        "properties": dict(zip(names, each, strict=True)),
        "required": names,
    }
    usual = sorted(scene.ask(20, 4).first for _ in range(3))[1]
    for child in psutil.Process(scene.server.process.pid).children():
        if "kvasir.grammar.trial" in child.cmdline():
            child.kill()  # it has to start
    heard = scene.ask(20, 8, structured_outputs={"json": schema})
    return Slowed(heard, heard.first - usual)


def load(scene: Scene) -> Slowed:
    wait_until(lambda: scene.server.metric("kvasir_engine_sleeping") == 1)
    heard = scene.ask(20, 8)
    return Slowed(heard, heard.first - scene.ask(20, 8).first)


def reader(scene: Scene) -> Slowed:
    """It reads nothing for a while after all is computed. A Unix socket has room for little."""
    path = str(scene.folder / "socket")
    body = {"model": scene.server.model, "prompt": "a slow reader", "max_tokens": 400, "n": 2}
    fields = {"stream": True, "logprobs": 20, "ignore_eos": True, "seed": scene.draw.randrange(99)}
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(path)
        heard = Heard(time.monotonic())
        sock.sendall(post_bytes("/v1/completions", json.dumps({**body, **fields}).encode()))
        data = b""
        while b"\n\n" not in data:
            data += sock.recv(4096)
        heard.id = json.loads(data.split(b"data: ", 2)[1].split(b"\n", 1)[0])["id"]
        wait_until(lambda: {x["state"] for x in choices(scene.server, heard)} == {"finished"})
        computed = time.monotonic()
        time.sleep(scene.draw.uniform(0.5, 1.5))
        while b"[DONE]" not in data[-64:]:
            data += sock.recv(1 << 20)
    heard.ended = time.monotonic()
    return Slowed(heard, heard.ended - computed)


def restart(scene: Scene) -> Slowed:
    slowed = scene.asking(20, 200).begun()
    time.sleep(scene.draw.uniform(0.05, 0.3))
    os.kill(scene.server.engine_pid(), signal.SIGKILL)
    heard = slowed.done()
    return Slowed(heard, heard.gap)


def machine(scene: Scene) -> Slowed:
    n_tokens = scene.draw.randrange(100, 160)
    alone = scene.ask(20, n_tokens)
    slowed = scene.asking(20, n_tokens).begun()
    with neighbours(2):
        heard = slowed.done()
    return Slowed(heard, heard.seconds - alone.seconds)


@contextmanager
def neighbours(n: int) -> Iterator[None]:
    spinning = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spinning) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def nothing(scene: Scene) -> Slowed:
    return Slowed(scene.ask(20, scene.draw.randrange(60, 160)), 0.0)


Injection = Callable[[Scene], Slowed]
PLENTY: dict[str, Injection] = {
    "slots": slots,
    "turn": turn,
    "prompt": prompt,
    "others_prompts": others_prompts,
    "grammar": grammar,
    "machine": machine,
    "nothing": nothing,
    "restart": restart,
}
SCARCE: dict[str, Injection] = {"blocks": blocks, "preemption": preemption}
DISK: dict[str, Injection] = {"disk": disk}
IDLE: dict[str, Injection] = {"load": load}
SOCKET: dict[str, Injection] = {"reader": reader}
"""By the server that they are done to."""
CAUSES = (*PLENTY, *SCARCE, *DISK, *IDLE, *SOCKET)
