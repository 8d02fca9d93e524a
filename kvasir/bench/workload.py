"""Fixed random prompts, and an engine driven through them with the time of every event."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kvasir.core.errors import ConfigError, KvasirError
from kvasir.core.params import TokenParams
from kvasir.core.request import EngineRequest
from kvasir.engine.build import BuiltEngine
from kvasir.exec.cpu.executor import CpuExecutor

SEED = 20


@dataclass(slots=True)
class TokenTimes:
    """Seconds from submission to each token of one request; tokens of one step share a time."""

    tokens: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        return self.tokens[0]

    @property
    def last(self) -> float:
        return self.tokens[-1]

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first; 0 for a single token."""
        gaps = len(self.tokens) - 1
        return gaps / (self.last - self.first) if gaps else 0.0


class Workload:
    """Numbers its requests through the life of an engine. Greedy, end-of-sequence ignored."""

    def __init__(self, built: BuiltEngine) -> None:
        self.built = built
        self._next_id = 0

    def run(self, n_requests: int, n_prompt: int, n_output: int, key: int = 0) -> list[TokenTimes]:
        """Submit all at once and compute them to the end; ``key`` chooses other prompts.

        Raises ConfigError when a request is too long for the engine, KvasirError when one fails.
        """
        self._check(n_prompt, n_output)
        timelines: dict[int, TokenTimes] = {}
        requests = [self._request(n_prompt, n_output, key, i) for i in range(n_requests)]
        start = time.perf_counter()
        for request in requests:
            timelines[request.id] = TokenTimes()
            self.built.engine.add(request)
        self._drain(timelines, start)
        _check_lengths(timelines.values(), n_output)
        return list(timelines.values())

    @property
    def native_seconds(self) -> float:
        """Spent inside the native call so far; 0 on an executor that has none."""
        executor = self.built.executor
        return executor.native_seconds if isinstance(executor, CpuExecutor) else 0.0

    def _drain(self, timelines: dict[int, TokenTimes], start: float) -> None:
        engine = self.built.engine
        while engine.has_work:
            events = engine.step().events
            now = time.perf_counter() - start
            for event in events:
                if event.finish in ("error", "cancelled"):
                    raise KvasirError(f"a measured request failed: {event.error or event.finish}")
                timelines[event.id].tokens.extend([now] * len(event.tokens))

    def _request(self, n_prompt: int, n_output: int, key: int, index: int) -> EngineRequest:
        generator = np.random.default_rng((SEED, key, index, n_prompt))
        prompt = generator.integers(0, self.built.config.sizes.vocab_size, n_prompt)
        params = TokenParams(seed=index, max_tokens=n_output, temperature=0.0)
        self._next_id += 1
        return EngineRequest(self._next_id, tuple(prompt.tolist()), params)

    def _check(self, n_prompt: int, n_output: int) -> None:
        room = self.built.config.sizes.max_model_len
        if n_prompt + n_output > room:
            raise ConfigError(
                f"{n_prompt} + {n_output} tokens exceed max_model_len {room}: "
                "measure shorter ones, or raise --max-model-len or --kv-memory"
            )


def _check_lengths(timelines: Iterable[TokenTimes], n_output: int) -> None:
    """A figure over fewer tokens than asked for would be a wrong figure."""
    lengths = {len(timeline.tokens) for timeline in timelines}
    if lengths != {n_output}:
        raise KvasirError(f"requests gave {sorted(lengths)} tokens, expected {n_output} each")
