"""Native core (nanobind). Arrays are C-contiguous NumPy arrays unless said otherwise."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

def levels() -> list[str]:
    """ISA levels that this CPU can run, lowest first: "scalar", "avx2", "avx512_vnni"."""

class Pool:
    def __init__(self, n_threads: int, pin: bool = False) -> None: ...
    @property
    def size(self) -> int: ...

class Sampler:
    """Sampler states by slot; see native/sample/sampler.h."""

    def __init__(self, max_slots: int, vocab: int) -> None: ...
    def open(
        self,
        slot: int,
        *,
        seed: int,
        temperature: float,
        top_p: float,
        min_p: float,
        top_k: int,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        min_tokens: int,
        n_logprobs: int,
        n_prompt_logprobs: int,
        logit_bias: list[tuple[int, float]],
        stop_ids: list[int],
        prompt: list[int],
        output: list[int],
    ) -> None: ...
    def commit(self, slot: int, token: int) -> None: ...
    def sample(
        self, slot: int, logits: NDArray[np.float32], out_index: int, path: list[int], target: int
    ) -> tuple[int, float, int, list[tuple[int, float]]]:
        """(token, logprob, rank, top); overwrites ``logits`` [vocab]."""

def hash_row(row: NDArray[np.float32]) -> int: ...
def philox(seed: int, out_index: int, token: int) -> int:
    """The u32 that the noise of one token is made of."""

def measure(kind: str, n_threads: int, n_bytes: int) -> float:
    """Machine ceilings: "read" (GB/s over n_bytes), "int8", "bf16", "fp32" (GOP/s; n_bytes ignored)."""
