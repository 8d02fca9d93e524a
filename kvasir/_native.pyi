"""Native core (nanobind). Arrays are C-contiguous NumPy arrays unless said otherwise."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvasir.core.params import TokenParams

def levels(emulated: bool = False) -> list[str]:
    """ISA levels that this CPU can run, lowest first: "scalar", "avx2", "avx2_vnni",
    "avx512", "avx512_vnni", "avx512_bf16", "amx".

    With ``emulated`` also "avx2_vnni_emulated" and "amx_emulated", where the instructions that
    "avx2_vnni" and "amx" are named for are functions: for tests.
    """

def all_levels() -> list[tuple[str, bool, bool]]:
    """(name, runs here, tested on a CPU that has it) of every level but the emulated."""

ROW_CLASS_ENDS: tuple[int, ...]
"""The largest number of rows of each class but the last."""

def variants() -> list[tuple[str, str]]:
    """(name, all that it is) of every variant of the linear kernels, by number. The first is what
    is used where nothing was measured."""

def variants_for(level: str, layout: int, row_class: int) -> list[int]:
    """Those that a level has for a layout and a class of rows, the first of all first."""

class Pool:
    def __init__(self, n_threads: int, cpus: Sequence[Sequence[int]] = ()) -> None: ...
    @property
    def size(self) -> int: ...

class Sampler:
    """Sampler states by slot; see native/sample/sampler.h."""

    def __init__(self, max_slots: int, vocab: int, kept: int = 0) -> None: ...
    def open(
        self, slot: int, params: TokenParams, prompt: Sequence[int], output: Sequence[int]
    ) -> None: ...
    def commit(self, slot: int, token: int) -> None: ...
    def sample(
        self,
        slot: int,
        logits: NDArray[np.float32],
        out_index: int,
        path: list[int],
        target: int,
        columns: int = 0,
        mask: NDArray[np.uint32] | None = None,
        drafts: bool = False,
        drafted: int = -1,
    ) -> tuple[int, float, int, list[tuple[int, float]]]:
        """(token, logprob, rank, top); overwrites ``logits`` [vocab].

        ``columns``: as if the LM head had found the largest logit of each so many; 0: it has not.
        ``drafts``, ``drafted``: what the row is to the classical rule (``sampling.classical``).
        """
    def draft(
        self,
        slot: int,
        logits: NDArray[np.float32],
        out_index: int,
        path: list[int],
        siblings: int = 0,
    ) -> tuple[int, list[int]]:
        """(token, at most so many ``siblings``) for a draft program; overwrites ``logits``."""

class Fills:
    """The masks of a step: brought to it, or made by its threads between its items, through a
    library's C interface (``exec.base.Fills``); see native/sample/fills.h."""

    def __init__(self, rows: int, waiting: Sequence[int], words: int) -> None:
        """Of ``rows`` logit rows those of ``waiting`` get a mask of ``words`` words."""
    def bring(self, row: int, mask: NDArray[np.uint32]) -> bool:
        """Keeps a copy of ``mask`` [words]; False: the row waits for none."""
    def abandon(self) -> None:
        """Rows that still wait draw nothing."""
    def flag(self, row: int) -> int:
        """One of ``ENUMS["MaskFlag"]``."""
    def mask(self, row: int) -> list[int]:
        """Its words. Raises ValueError when it is not there."""
    def put(
        self, fills: Sequence[tuple[int, tuple[tuple[int, int, int], int, int, Sequence[int]]]]
    ) -> None:
        """Once: by row, what is to be called."""
    def help(self) -> bool:
        """As a thread of a step does: make one; False: there is none that nobody has begun."""
    def wait(self, seconds: float, each: float) -> list[tuple[int, bool, int, float, float]]:
        """Of each its state (``ENUMS["FillState"]``), whether it was cancelled, the one token that
        it allows or -1, the seconds that it took, and those of the processor."""

class TextIndex:
    """``speculate.text.PlainIndex``; tokens of lists, tuples and ``array("i")`` stay where they
    are."""

    def __init__(self, n_key: int) -> None:
        """Raises ValueError for a key of no or more than 5 tokens."""
    def read(self, tokens: Sequence[int], end: int, n_most: int) -> int: ...
    def has_read(self, end: int) -> bool: ...
    def match(self, tokens: Sequence[int], tail: Sequence[int], n_most: int) -> tuple[int, int]: ...
    @property
    def bytes(self) -> int:
        """That it takes."""

def hash_row(row: NDArray[np.float32]) -> int: ...
def likeliest(row: NDArray[np.float32], k: int) -> list[int]:
    """At most ``k`` ids of a row of logits, the likeliest first (``sampling.reference``)."""

SLOT_PARAMS: tuple[str, ...]
"""What ``Sampler.open`` reads of its parameters."""

def philox(seed: int, out_index: int, token: int, stream: int = 0) -> int:
    """The u32 that the noise of one token is made of."""

def measure(kind: str, n_threads: int, n_bytes: int) -> float:
    """Machine ceilings: "read" (GB/s over n_bytes), "int8", "bf16", "fp32" (GOP/s; n_bytes
    ignored).

    0 when the CPU has no instruction for ``kind``. Raises ValueError for an unknown kind.
    """

def measure_missing(kind: str) -> str:
    """Empty, or why ``kind`` cannot be measured on this CPU."""

class Program:
    """A lowered program over shared arrays; see native/program/program.h and exec/cpu.

    Raises ValueError when a record names what is not there or an array does not have its size.
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
        kv_places: NDArray[np.uint8],
        tables: list[NDArray[np.float32]],
        arena: NDArray[np.uint8],
        arrays: Mapping[str, NDArray[np.generic]],
    ) -> None: ...
    def choose(self, weight: int, row_class: int, variant: int) -> None:
        """Which variant the linears of a weight are from the next step on, for a class of rows;
        bits stay. Raises ValueError for one that ``variants_for`` does not have."""
    def draft_with(
        self,
        drafts: Sequence[Program],
        arrays: Mapping[str, NDArray[np.generic]],
        exports: Sequence[int],
        carried: int = -1,
    ) -> None:
        """From now on each step goes on with the draft programs, the first for the first token of
        a chain and so on, the last one for all others. Their arrays are this one's but for
        its results: over all tokens, or those of ``follow_tokens`` [tokens], of each sequence from
        ``follow_begin`` [sequences + 1] on, at ``follow_start`` [sequences]; then ``n_drafts``
        [sequences] steps of one token, which give ``drafts`` [sequences, drafts] and ``siblings``
        [sequences, ranks, drafts], for which their results have ``ranked`` [rows, ranks]. Of a tree
        they take in what the target drew, as a chain. ``exports``: ids of the buffers that they
        read. ``carried``: of a head, the buffer of its own that takes the place of the one export
        behind the first token of a chain; it takes in of each token the one after it,
        ``successors`` [sequences] behind rows that draw nothing."""
    @property
    def draft_seconds(self) -> float:
        """That the draft program took in the last step."""
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
        masks: tuple[Fills, float] | None = None,
        pooled: int = 0,
        piece: tuple[int, int, int] | None = None,
    ) -> None:
        """One step over the filled arrays; releases the GIL. ``masks``, and the seconds that rows
        wait for theirs at most. ``pooled``: logit rows of the program that pools. ``piece``:
        (phase, part, parts), a part of the items of one phase alone; the arrays and the arena stay
        as they are until all have run, phase by phase. Raises ValueError for one that is not."""
    def pool_with(self, pool: Program) -> None:
        """From now on steps with pooled rows go on with this program, whose logit rows these are:
        it adds them to its array ``sums``, f64 [slots, columns]."""

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
    """File rows to column tiles of ``out`` (zero-filled); column tile t goes to tile_first + t *
    tile_step."""

def packs(format: str, layout: int) -> bool:
    """Whether ``pack_rows`` takes these rows to this layout."""

def tile_bytes(layout: int, K: int) -> int:
    """Bytes of a packed tile of 16 columns."""

class Rows:
    """Rows of activations over ``data`` [rows, K]: float32, uint16 (bf16) or int8 (q8).

    q8 also needs ``block``, ``scales`` [rows, K / block] and ``sums`` [rows, K / 32].
    """

    def __init__(
        self,
        data: NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.int8],
        block: int = 0,
        scales: NDArray[np.float32] | None = None,
        sums: NDArray[np.float32] | None = None,
    ) -> None: ...

class KvBlocks:
    """KV blocks of one layer, K of all heads before V; see KvLayer in native/kernels.h."""

    def __init__(
        self,
        memory: NDArray[np.uint8],
        n_blocks: int,
        block_size: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: int,
        latent: int = 0,
    ) -> None:
        """``dtype``: KvType of native/kernels.h."""

class StepRows:
    """The rows of one step; see native/kernels.h."""

    def __init__(
        self,
        seq: NDArray[np.int32],
        pos: NDArray[np.int32],
        store: NDArray[np.int32],
        parent: NDArray[np.int32],
        seq_begin: NDArray[np.int32],
        seq_start: NDArray[np.int32],
        seq_tree: NDArray[np.uint8],
        tables: NDArray[np.int32],
    ) -> None: ...

class Kernels:
    """The kernel table of one level, for tests and microbenchmarks; see native/kernels.h.

    Each method computes the items [m0, m1) into the arrays it is given. Layouts, activations and
    epilogues are numbers in the order of native/kernels.h. Raises ValueError for a level that
    cannot run here, sizes that do not fit and ranges that leave the rows.
    """

    def __init__(self, level: str, variant: int = 0) -> None:
        """``variant``: of its linears, where they have it for their rows; else the first."""
    @property
    def level(self) -> str: ...
    def linear(
        self,
        layout: int,
        w: NDArray[np.uint8],
        N: int,
        x: Rows,
        out: NDArray[np.float32],
        tile0: int,
        tile1: int,
        m0: int,
        m1: int,
        epilogue: int = 0,
        act: int = 0,
        residual: NDArray[np.float32] | None = None,
        bias: NDArray[np.float32] | None = None,
        row_index: NDArray[np.int32] | None = None,
    ) -> None: ...
    def norm(
        self,
        x: NDArray[np.float32],
        weight: NDArray[np.float32] | None,
        eps: float,
        out: Rows,
        m0: int,
        m1: int,
    ) -> None: ...
    def layer_norm(
        self,
        x: NDArray[np.float32],
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        eps: float,
        out: Rows,
        m0: int,
        m1: int,
    ) -> None: ...
    def cast(
        self, x: NDArray[np.float32], out: Rows, m0: int, m1: int, column: int = 0
    ) -> None: ...
    def rope_write(
        self,
        qkv: NDArray[np.float32],
        q: NDArray[np.float32],
        n_heads: int,
        neox: bool,
        table: NDArray[np.float32],
        q_table: NDArray[np.float32],
        norm: int,
        q_norm: NDArray[np.float32] | None,
        k_norm: NDArray[np.float32] | None,
        eps: float,
        kv: KvBlocks,
        step: StepRows,
        m0: int,
        m1: int,
    ) -> None: ...
    def attention(
        self,
        q: NDArray[np.float32],
        out: NDArray[np.float32],
        scale: float,
        softcap: float,
        window: int,
        kv: KvBlocks,
        step: StepRows,
        seq: int,
        t0: int,
        t1: int,
        kv_head: int,
        sinks: NDArray[np.float32] | None = None,
        split: bool = False,
        ends: NDArray[np.int32] | None = None,
        chunked: bool = False,
        tokens: NDArray[np.int32] | None = None,
        shared: int = 0,
        slopes: NDArray[np.float32] | None = None,
    ) -> None:
        """Tokens [t0, t1) of one sequence, one KV head; q, out are [T, n_heads * head_dim].

        ``sinks`` [n_heads]; ``split``: segment by segment, the last first, then combined;
        ``ends`` [T]: where the positions end that a token sees, in place of behind itself;
        ``tokens`` [n] in place of ``seq``, ``t0`` and ``t1``: each the only one of its sequence,
        whose tables agree in the first ``shared`` positions; out has a row for each, in this order;
        ``chunked``: those of its own run of ``window`` positions; ``slopes`` [n_heads]: scores lose
        that much for each position between query and key.
        """
    def embed(
        self,
        layout: int,
        w: NDArray[np.uint8],
        ids: NDArray[np.int32],
        scale: float,
        out: NDArray[np.float32],
        m0: int,
        m1: int,
    ) -> None: ...
    def add(
        self,
        a: NDArray[np.float32],
        b: NDArray[np.float32],
        out: NDArray[np.float32],
        m0: int,
        m1: int,
    ) -> None: ...
    def scale(
        self,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
        factor: float,
        softcap: float,
        m0: int,
        m1: int,
    ) -> None: ...
    def mul(
        self,
        x: NDArray[np.float32],
        y: NDArray[np.float32],
        out: NDArray[np.float32],
        m0: int,
        m1: int,
    ) -> None: ...
    def sparse_gate(
        self,
        x: NDArray[np.float32],
        up: NDArray[np.float32],
        out: NDArray[np.float32],
        deviations: float,
        act: int,
        m0: int,
        m1: int,
    ) -> None: ...
    def gate_rows(
        self,
        x: NDArray[np.float32],
        gate: NDArray[np.float32],
        out: NDArray[np.float32],
        m0: int,
        m1: int,
    ) -> None: ...
    def route(
        self,
        logits: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        normalize: bool,
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
        m0: int,
        m1: int,
        score: int = 0,
        n_groups: int = 1,
        top_groups: int = 1,
        group_score: int = 0,
        scale: float = 1.0,
    ) -> None: ...
    def spread(
        self,
        x: NDArray[np.float32],
        row: NDArray[np.int32],
        weights: NDArray[np.float32],
        out: NDArray[np.float32],
        m0: int,
        m1: int,
    ) -> None: ...
    def combine(
        self,
        y: NDArray[np.float32],
        row: NDArray[np.int32] | None,
        weights: NDArray[np.float32],
        out: NDArray[np.float32],
        m0: int,
        m1: int,
    ) -> None: ...

ENUMS: Mapping[str, Mapping[str, int]]
"""Numbers by the names that native/ has for them: "Act", "DType", "Epilogue", "GroupScore",
"KvType", "Layout", "Op" (the kinds of records), "QkNorm", "RowsOf", "Score"."""
STRUCTS: Mapping[str, Any]
"""What ``numpy.dtype`` makes the structs of that Python fills: "Record", "Buffer", "KvPlace" of
native/program/spec.h."""
KV_TYPE_SIZES: Mapping[str, tuple[int, int]]
"""By type of cache entries the bytes of an element and of a head's scale."""
MAX_LOGIT_ROWS: int
"""Of a step; references name drafts beyond it."""
LAYOUT_VERSION: int
"""Changes with the bytes of any packed layout."""
MAX_EXPERTS: int
"""Of a layer."""
MAX_HEAD_DIM: int
MAX_LATENT_DIM: int
"""Kernels take heads of multiples of 16 up to it; ``Program`` raises ValueError for others, and for
int8 rows in blocks of more than 512."""

def checksum(data: bytes, seed: int = 0) -> int:
    """XXH64 of ``data``."""

def checksums(pool: Pool, data: NDArray[np.uint8], chunk: int, out: NDArray[np.uint64]) -> None:
    """XXH64 of each ``chunk`` bytes of ``data``, by all threads; the last chunk may be shorter."""

def interleave_new_pages(nodes: Sequence[int]) -> None: ...
def interleave_pages(memory: NDArray[np.uint8], nodes: Sequence[int]) -> None: ...
def advise_huge_pages(memory: NDArray[np.uint8], wanted: bool) -> bool: ...
def populate_pages(memory: NDArray[np.uint8]) -> bool:
    """Gives whole pages their memory, without a change of what they hold; False when the kernel
    does not know how."""
