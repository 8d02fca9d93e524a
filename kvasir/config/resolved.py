"""What the engine does: frozen configs, one per component, each handed only to its own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

import msgspec

from kvasir.config.speculation import Speculation
from kvasir.core.groups import KVGroup
from kvasir.core.kvtypes import KVType
from kvasir.core.sizes import EngineSizes
from kvasir.core.vectors import NO_VECTORS, VectorFacts

DType = Literal["auto", "float32", "bfloat16"]
PreemptionMode = Literal["auto", "swap", "recompute"]

SchedulingPolicy = Literal["fair", "fcfs", "static"]
KVPolicy = Literal["paged", "contiguous"]


class ModelFacts(msgspec.Struct, frozen=True):
    """What a model's file says, as far as planning needs it."""

    name: str
    vocab_size: int
    context_length: int
    """Tokens the model was trained for."""
    kv_values_per_token: int
    """Numbers cached for one token: keys and values, all heads, all layers."""
    weight_bytes: int
    """Bytes of the weights in memory."""
    weight_dtype: str
    """"quantized", "bfloat16", "float16" or "float32": the type of most linear weights."""
    kv_vectors_per_token: int
    """Vectors of those numbers: a key and a value per KV head and layer."""
    windows: tuple[int, ...] = ()
    """Per layer the positions that a token sees, 0 for all; empty: all layers see all."""
    kv_layers: tuple[tuple[int, int], ...] = ()
    """Numbers and vectors cached for one token in each layer of ``windows``; empty: as many in
    each."""
    state_bytes: tuple[int, ...] = ()
    """Bytes of the state of a sequence, for each layer that keeps one and no positions. They are
    not among ``windows``."""
    kept_bytes: int = 0
    """Bytes that these layers keep of a drafted token."""
    vectors: VectorFacts = NO_VECTORS
    whole_prompts: bool = False
    """Tokens see what follows them: a prompt is computed in one step, and no beginning of it serves
    another."""
    span_tokens: int = 0
    """Of a tile whose tokens see each other; 0: none do."""
    vocabulary: str = ""
    """Of a draft model: how its tokens become the target's."""
    is_head: bool = False
    """It reads what the target computes, in each step."""
    most_drafts: int = 0
    """Of Medusa, its heads; 0: as many tokens as one likes."""


class ModelSettings(msgspec.Struct, frozen=True):
    name: str
    """Name in the API."""
    dtype: DType
    vectors: VectorFacts = NO_VECTORS


class KVConfig(msgspec.Struct, frozen=True):
    kind: KVType
    block_size: int
    """Tokens of one block."""
    groups: tuple[KVGroup, ...]
    """The one that keeps every position first, if there is one."""
    group_bytes: tuple[int, ...]
    """Per group the bytes of one block over all its layers."""

    @property
    def n_blocks(self) -> int:
        """Of the layers that keep every position; 0 when there are none."""
        return sum(group.n_blocks for group in self.groups if not group.window)

    @property
    def windows(self) -> tuple[KVGroup, ...]:
        return tuple(group for group in self.groups if group.window)

    @property
    def n_tokens(self) -> int:
        """Tokens that the layers hold which keep most."""
        return max(group.n_blocks for group in self.groups) * self.block_size

    def concurrency(self, length: int) -> float:
        """Requests of ``length`` tokens that the blocks hold at a time."""
        return min(x.n_blocks / x.needs(length, self.block_size) for x in self.groups)

    @property
    def block_bytes(self) -> int:
        """Of one block over all layers."""
        return sum(self.group_bytes)

    @property
    def n_bytes(self) -> int:
        pairs = zip(self.groups, self.group_bytes, strict=True)
        return sum(group.n_blocks * n_bytes for group, n_bytes in pairs)


class SharingConfig(msgspec.Struct, frozen=True):
    """Who is served when, and at whose cost."""

    policy: SchedulingPolicy = "fair"
    priority_weights: tuple[float, ...] = (10.0, 5.0, 1.0)
    """Shares of the classes realtime, standard and batch."""
    tenant_weights: tuple[tuple[str, float], ...] = ()
    """Shares of tenants in their class; 1 for all others."""
    preemption_threshold: float = 0.0
    """Seconds that a realtime request waits before it preempts batch requests."""
    kv_policy: KVPolicy = "paged"
    """contiguous: blocks for the longest answer are taken when a request starts."""


class SchedulerConfig(msgspec.Struct, frozen=True):
    sizes: EngineSizes
    max_draft_tokens: int = 0
    """Drafted tokens of one row; 0 without speculation."""
    adapts_drafts: bool = True
    """Of drafts that say how sure they are only as much is computed as pays."""
    drafters: tuple[str, ...] = ()
    """Methods, in the order of ``Draft.drafter``."""
    min_draft_tokens: int = 0
    """Of one row, below which none is computed."""
    lazy_drafts: bool = False
    """Plans say what the draft program takes in; else it takes in what the target does."""
    draft_share: float = 0.1
    """Of a step of the target, that a pass of the draft program is expected to take."""
    draft_is_head: bool = False
    """The draft program gives its first token where it takes tokens in."""
    head_may_rest: bool = False
    """It takes nothing in while nothing is asked for, and drafts no more for who ran meanwhile."""
    enable_prefix_caching: bool = False
    """Keep full blocks whose request is done, for requests that begin with the same tokens."""
    itl_target: float | None = None
    """Seconds that a step with decodes should take at most; None: whatever it takes; 0: less than
    twice as long as its decodes alone, longer when many prompts wait."""
    preemption_mode: PreemptionMode = "auto"
    """How a preempted request comes back when its blocks were evicted to disk."""
    sharing: SharingConfig = SharingConfig()
    whole_prompts: bool = False
    """A prompt is computed in one step, or waits for one that has room for it."""
    span_tokens: int = 0
    """Of a tile whose tokens see each other: they are computed in one step; 0: none do."""


class DraftConfig(msgspec.Struct, frozen=True):
    """Of a draft model beside the target."""

    dtype: DType
    max_model_len: int
    """Tokens of a request behind which it drafts nothing."""


class DiskConfig(msgspec.Struct, frozen=True):
    """Where KV blocks go that memory has no room for."""

    path: Path
    n_bytes: int
    """Of all files in it."""


class ExecutorConfig(Protocol):
    """What an executor runs with; its backend may have more for it."""

    @property
    def threads(self) -> int:
        """That compute."""
        ...

    @property
    def leaves_python_free(self) -> bool:
        """While a step runs, so that the next one is best planned meanwhile."""
        ...


class PythonConfig(msgspec.Struct, frozen=True):
    """Of an executor in Python alone."""

    threads: int = 1
    leaves_python_free: bool = False


class LoopConfig(msgspec.Struct, frozen=True):
    overlap: bool
    """Plan step n+1 while step n runs."""
    jump_ahead: bool = True
    """Tokens that a grammar forces have no steps of their own."""


class EngineConfig(msgspec.Struct, frozen=True):
    model: ModelSettings
    kv: KVConfig
    scheduler: SchedulerConfig
    executor: ExecutorConfig
    loop: LoopConfig
    seed: int | None
    disk: DiskConfig | None
    """None: evicted blocks are forgotten."""
    speculation: Speculation | None
    """None: nobody proposes drafts."""
    draft: DraftConfig | None
    """None: there is no draft model."""
    reasons: dict[str, str]
    """Option name to "value: why", for the start-up report."""
    warnings: tuple[str, ...] = ()
    """What was done as asked and may be regretted."""

    @property
    def sizes(self) -> EngineSizes:
        return self.scheduler.sizes
