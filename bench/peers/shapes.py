"""What every engine is asked to do. All rates are tokens per second; imports nothing of Kvasir."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

Rates = dict[str, float]
Prompts = list[list[int]]
Generate = Callable[[Prompts, int], None]
"""Computes prompts together, greedily, exactly so many output tokens each."""

N_DECODE_PROMPT, N_DECODE = 32, 128
REPEAT = 3
"""Timed runs of decode and of each prefill in a turn, whose median is the turn's rate."""
WARM_OUT = 4
"""Output tokens of each request of the batch that warms up. A turn times one batch."""


@dataclass(frozen=True)
class Shapes:
    """``batch``: requests that come at once, their prompt and their output tokens."""

    threads: int
    prefill: tuple[int, ...] = (512, 2048)
    batch: tuple[int, int, int] = (64, 128, 128)
    vocab: int = 32000
    """Prompts are random ids below it."""

    @property
    def context(self) -> int:
        """Tokens that a sequence may need."""
        return max(*self.prefill, sum(self.batch[1:]), N_DECODE_PROMPT + N_DECODE) + 16

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Shapes:
        values = json.loads(text)
        lists = {name: tuple(values[name]) for name in ("prefill", "batch")}
        return Shapes(**values | lists)


def measure_calls(generate: Generate, shapes: Shapes) -> Rates:
    """Rates of an engine that is called in its own process, by the rules of the package's command.

    decode: tokens after the first, by the difference of a call of ``N_DECODE`` outputs and one of a
    single output; prefill N: N over the time of one output; batch: output tokens over the whole
    time of one call, prefill included. decode and prefill are medians of ``REPEAT`` calls. Each
    shape is warmed by a call that does not count. Every prompt is new.
    """
    source = random.Random(20)

    def seconds(n_prompts: int, n_in: int, n_out: int) -> float:
        prompts = [source.choices(range(10, shapes.vocab), k=n_in) for _ in range(n_prompts)]
        start = time.perf_counter()
        generate(prompts, n_out)
        return time.perf_counter() - start

    def decode() -> float:
        short = seconds(1, N_DECODE_PROMPT, 1)
        return (N_DECODE - 1) / (seconds(1, N_DECODE_PROMPT, N_DECODE) - short)

    seconds(1, N_DECODE_PROMPT, 16)
    rates = {"decode": statistics.median(decode() for _ in range(REPEAT))}
    for n in shapes.prefill:
        seconds(1, n, 1)
        rates[f"prefill {n}"] = n / statistics.median(seconds(1, n, 1) for _ in range(REPEAT))
    count, n_in, n_out = shapes.batch
    seconds(count, n_in, WARM_OUT)
    rates["batch"] = count * n_out / seconds(count, n_in, n_out)
    return rates
