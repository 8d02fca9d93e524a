"""Native core (nanobind). Arrays are C-contiguous NumPy arrays unless said otherwise."""

from collections.abc import Mapping
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
    """Machine ceilings: "read" (GB/s over n_bytes), "int8", "bf16", "fp32" (GOP/s; n_bytes ignored).

    0 when the CPU has no instruction for ``kind``. Raises ValueError for an unknown kind.
    """

def measure_missing(kind: str) -> str:
    """Empty, or why ``kind`` cannot be measured on this CPU."""

class Program:
    """A lowered program over shared arrays; see native/program/program.h and exec/cpu.

    Raises ValueError when a record, buffer or array does not have the native size.
    """

    def __init__(
        self,
        pool: Pool,
        level: str,
        sampler: Sampler,
        sizes: Mapping[str, int | bool],
        records: NDArray[np.uint8],
        buffers: NDArray[np.uint8],
        weights: list[tuple[NDArray[np.uint8], int, int, int, int]],
        kv: NDArray[np.uint8],
        kv_layout: NDArray[np.int64],
        tables: list[NDArray[np.float32]],
        arena: NDArray[np.uint8],
        arrays: Mapping[str, NDArray[np.generic]],
    ) -> None: ...
    @property
    def phases(self) -> int: ...
    def run(
        self,
        tokens: int,
        seqs: int,
        logits: int,
        until: int = -1,
        seconds: NDArray[np.float64] | None = None,
        out: NDArray[np.float32] | None = None,
    ) -> None:
        """One step over the filled arrays; releases the GIL."""

def pack_rows(
    pool: Pool,
    layout: int,
    format: str,
    rows: NDArray[np.uint8],
    N: int,
    K: int,
    out: NDArray[np.uint8],
    tile_first: int = 0,
    tile_step: int = 1,
) -> None:
    """File rows to column tiles of ``out`` (zero-filled); column tile t goes to tile_first + t * tile_step."""

def tile_bytes(layout: int, K: int) -> int:
    """Bytes of a packed tile of 16 columns."""

def record_sizes() -> tuple[int, int]:
    """Bytes of the native Record and Buffer."""
