"""Real Ctrl-C at random moments of a call, and what an LLM must be afterwards."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kvasir import LLM, BeamSearchParams, SamplingParams

PROMPTS = [[3 + (i * j) % 200 for j in range(20 + 7 * i)] for i in range(6)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
TALK = [{"role": "user", "content": "the cat sat on the mat"}]
BEAMS = BeamSearchParams(beam_width=3, max_tokens=10, ignore_eos=True)

CALLS: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate(PROMPTS, PARAMS, use_tqdm=False),
    "chat": lambda llm: llm.chat([TALK, TALK], PARAMS, use_tqdm=False),
    "beams": lambda llm: llm.beam_search({"prompt_token_ids": PROMPTS[2]}, BEAMS),
}


SENDER = """
import mmap, os, sys, time
with open(sys.argv[1], "r+b") as file:
    sent = mmap.mmap(file.fileno(), 4096)
for number, line in enumerate(sys.stdin.buffer):
    for delay in map(float, line.split()):
        time.sleep(delay)
        os.kill(os.getppid(), 2)
    sent[:8] = (number + 1).to_bytes(8, "little")
"""


class Sender:
    """Another process that sends SIGINT when asked to. What it has sent is read from memory that
    both share: a read of a pipe could lose its answer to the very signal."""

    def __init__(self, folder: Path) -> None:
        path = folder / "sent"
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            self._sent = mmap.mmap(file.fileno(), 4096)
        command = [sys.executable, "-c", SENDER, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self._n_asked = 0

    def amid(self, call: Callable[[], object], delays: list[float]) -> bool:
        """Whether a signal after ``delays`` ended ``call``; returns when all have come."""
        assert self._process.stdin is not None
        line = " ".join(map(str, delays)).encode() + b"\n"
        is_done = False
        self._n_asked += 1
        try:
            os.write(self._process.stdin.fileno(), line)
            call()
            is_done = True
        except KeyboardInterrupt:  # ``suppress`` is Python code, which another could interrupt
            pass
        while True:
            try:
                while int.from_bytes(self._sent[:8], "little") < self._n_asked:
                    time.sleep(1e-4)
                return not is_done
            except KeyboardInterrupt:
                continue

    def close(self) -> None:
        self._process.communicate(timeout=30)


def words(outputs: list[Any]) -> list[Any]:
    """What was answered, without what depends on the cache or counts calls."""
    return [
        [(s.tokens, s.cum_logprob) for s in output.sequences]
        if hasattr(output, "sequences")
        else [(choice.text, choice.token_ids, choice.finish_reason) for choice in output.outputs]
        for output in outputs
    ]


def interrupt(llm: LLM, sender: Sender, n_interrupts: int, seed: int) -> int:
    """Sends SIGINT until it has come amid ``n_interrupts`` calls, in one of five a second one soon
    after. Each of those calls must raise KeyboardInterrupt, and the next answer must be right.
    Returns the number of calls that had ended before."""
    rng = random.Random(seed)
    expected = {name: words(call(llm)) for name, call in CALLS.items()}
    seconds = {name: _seconds(partial(call, llm)) for name, call in CALLS.items()}
    n_interrupted = n_before = 0
    while n_interrupted < n_interrupts:
        name = rng.choice(list(CALLS))
        delays = [rng.uniform(0, seconds[name])]
        if rng.random() < 0.2:
            delays.append(rng.uniform(0, 0.1 * seconds[name]))
        if sender.amid(partial(CALLS[name], llm), delays):
            n_interrupted += 1
        else:
            n_before += 1
        name = rng.choice(list(CALLS))
        began = time.perf_counter()
        assert words(CALLS[name](llm)) == expected[name], (n_interrupted, name)
        seconds[name] = min(seconds[name], time.perf_counter() - began)
    stats = llm._has().built.engine.stats()
    assert (stats.n_running, stats.n_waiting) == (0, 0)
    return n_before


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
