"""The native executor: one GIL-free call per step."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.config.affinity import FREE, Affinity
from kvasir.core.errors import ConfigError, ModelError
from kvasir.core.plan import MAX_DRAFTS, Copy, Move, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.checks import check_states, refuse_programs
from kvasir.exec.cpu.kvmem import LANES, KVMemory
from kvasir.exec.cpu.lower import Lowered, WeightUse, lower
from kvasir.exec.cpu.native import Machine, Memory, logits_tile
from kvasir.exec.cpu.packed import Keeping, PackedCache
from kvasir.exec.cpu.pages import gives_huge_pages, in_huge_pages, tell
from kvasir.exec.cpu.place import PAUSE_SECONDS, Touching, new_pool, place, spread
from kvasir.exec.cpu.pooled import PooledRows
from kvasir.exec.cpu.sites import sites_of
from kvasir.exec.cpu.tower import LoweredTower, NativeTower
from kvasir.exec.cpu.tuned import TunedFile
from kvasir.exec.cpu.tuning import Tuning
from kvasir.exec.cpu.weights import NativeWeight, Packer
from kvasir.exec.inputs import StepArrays, result_arrays
from kvasir.exec.local import LocalExecutor
from kvasir.exec.masks import WAIT_SECONDS, NativeMasks
from kvasir.exec.media import MediaRows, RowsOf, blind
from kvasir.ir.bundle import (
    DRAFT,
    IS_MEDIA,
    MEDIA,
    POOL,
    TARGET,
    Bundle,
    as_bundle,
    draft_name,
    media_inputs,
)
from kvasir.ir.pieces import TowerPieces
from kvasir.ir.program import Program
from kvasir.weights.bind import Binding


class CpuSettings(msgspec.Struct, frozen=True):
    threads: int
    isa: str
    packed_cache: PackedCache | None = None
    """Where packed weights are kept; None packs at every start."""
    hashes: bool = False
    """Record a hash of every logit row (exactness tests)."""
    affinity: Affinity = FREE
    huge_pages: bool = True
    tuning: Literal["off", "cached", "auto"] = "off"
    """Whether variants of kernels are chosen: never, as was found before, or by measuring."""


class StepTimer(Protocol):
    def begin(self, n_tokens: int, n_logits: int) -> NDArray[np.float64] | None:
        """Before a step: where the time of each phase goes [phases]; None: nobody asks for it."""
        ...

    def end(self) -> None:
        """After a step that was timed."""
        ...


class CpuExecutor(LocalExecutor[NativeMasks]):
    """Runs plans of a lowered program (``exec.cpu.passes.lower_passes``) on the native core.

    Raises ModelError for heads of a size, ConfigError for blocks of one, ValueError for anything
    else, that the native core cannot compute.
    """

    new_masks = NativeMasks

    def __init__(
        self,
        program: Program | Bundle,
        binding: Binding,
        sizes: EngineSizes,
        settings: CpuSettings,
    ) -> None:
        bundle = as_bundle(program)
        refuse_programs(bundle)
        check_states(bundle, sizes)
        _refuse_heads(bundle)
        _refuse_blocks(sizes)
        super().__init__(sizes)
        self._pool = new_pool(settings.threads, settings.affinity)
        self._sampler = _native.Sampler(sizes.max_num_seqs, sizes.vocab_size, sizes.kept_drafts)
        self._kv = KVMemory.allocate(bundle.kv, sizes, len(bundle.target.kv))
        lowered = lower(
            bundle, max_tokens=sizes.max_num_batched_tokens, logits_tile=logits_tile(sizes)
        )
        tower = LoweredTower.of(bundle.tower) if bundle.tower else None
        self.lowered = lowered[TARGET]
        self._arrays = _step_arrays(bundle, sizes, self.lowered)
        self.arena = _arena(lowered.values())
        self._place(settings)
        every = (*lowered.values(), *(tower.programs if tower else ()))
        uses = list(dict.fromkeys(use for each in every for use in each.weights))
        weights, keeping = _packed(self._pool, bundle, binding, uses, settings)
        arrays, n_logits = self._arrays.arrays, sizes.max_num_batched_tokens
        machine = Machine(self._pool, settings.isa, self._sampler, weights, settings.hashes)
        own = Memory(sizes, self._kv, self.arena)
        self._native = own.program(machine, bundle.target, self.lowered, arrays, n_logits)
        self.tuning = self._tuned(settings, weights, binding)
        self.timer: StepTimer = self.tuning
        """Asked before each step whether its phases are timed."""
        if bundle.drafts:
            self._draft_with(bundle, lowered, machine, own)
        self._pooled: PooledRows | None = None
        if bundle.pool is not None:
            self._pooled = PooledRows.of(bundle.pool, sizes)
            arrays = {**self._arrays.arrays, **self._pooled.arrays}
            n_rows = sizes.max_num_batched_tokens
            pool = own.program(machine, bundle.pool, lowered[POOL], arrays, n_rows)
            self._native.pool_with(pool)
        self._media = self._seen(bundle, tower, machine, own)
        self._keeping = [each.start() for each in keeping]
        self._idle = _Idle()
        self._touching = Touching(self._kv.memory, self._idle)
        self._stop_touching = weakref.finalize(self, self._touching.stop)
        self.native_seconds = 0.0
        """Spent inside the native call by all steps so far."""

    def _place(self, settings: CpuSettings) -> None:
        for memory in (self._kv.memory, self.arena):
            place(memory, settings.affinity, settings.huge_pages)

    def _tuned(
        self,
        settings: CpuSettings,
        weights: Mapping[WeightUse, NativeWeight],
        binding: Binding,
    ) -> Tuning:
        file, cache, source = None, settings.packed_cache, binding.source
        n_bytes = sum(packed.size for packed, *_ in weights.values())
        is_kept = cache is not None and n_bytes >= cache.min_bytes and settings.tuning != "off"
        if is_kept and cache is not None and source is not None:
            hashed = source.content_hash
            file = TunedFile.of(cache.folder, hashed, settings.threads, settings.isa)
        used = [weights[use] for use in self.lowered.weights]
        sites = () if settings.tuning == "off" else sites_of(self.lowered, used, settings.isa)
        measures = settings.tuning == "auto"
        return Tuning(sites, self._native.choose, self.phases, file, measures=measures)

    def _seen(
        self, bundle: Bundle, tower: LoweredTower | None, machine: Machine, own: Memory
    ) -> MediaRows | None:
        """None for a target that takes no rows in place of embeddings."""
        if MEDIA not in bundle.target.inputs:
            return None
        rows_of: RowsOf = blind
        if tower is not None:
            pieces = TowerPieces.of(tower.tower)
            rows_of = NativeTower(tower, machine, pieces).rows
        media = [own.floats(self.lowered, name) for name in media_inputs(bundle.target)]
        is_media = own.integers(self.lowered, IS_MEDIA)[:, 0]
        return MediaRows(rows_of, media, is_media, self._arrays.ends)

    def _draft_with(
        self, bundle: Bundle, lowered: Mapping[str, Lowered], machine: Machine, own: Memory
    ) -> None:
        """With results of their own, of a logit row for each sequence."""
        n = own.sizes.max_num_seqs
        of_target = ("sampled", "candidates")
        shared = {name: x for name, x in self._arrays.arrays.items() if name not in of_target}
        ranked = np.zeros((n, own.sizes.draft_width - 1), np.int32)
        arrays = {**shared, **result_arrays(n), "ranked": ranked}
        drafts = [
            own.program(machine, program, lowered[draft_name(i)], arrays, n)
            for i, program in enumerate(bundle.drafts)
        ]
        buffers = [self.lowered.values[name] for name in bundle.read_by(DRAFT)]
        carried = lowered[DRAFT].values[bundle.carried] if bundle.carried else -1
        self._native.draft_with(drafts, self._arrays.arrays, buffers, carried)

    def choose(self, weight: int, row_class: int, variant: int) -> None:
        """Of the target's weight (``lowered``), from the next step on. Raises ValueError for a
        variant that it does not have."""
        self._native.choose(weight, row_class, variant)

    @property
    def phases(self) -> int:
        """Groups of independent ops in a step; each waits for the one before."""
        return self._native.phases

    def run(
        self,
        plan: StepPlan,
        *,
        until: int = -1,
        seconds: NDArray[np.float64] | None = None,
        logits: NDArray[np.float32] | None = None,
    ) -> StepResult:
        """One step, on the caller's thread. For debugging: stop after record ``until``, add each
        phase's time to ``seconds`` [phases], copy the raw logits to ``logits`` [logit rows,
        vocab]."""
        began = time.monotonic()
        self._idle.since = inf
        self.tables.apply(plan)
        for opened in plan.opens:
            self._sampler.open(opened.slot, opened.params, opened.prompt, opened.output)
        for slot, token in plan.commits:
            self._sampler.commit(slot, token)
        self.prepare(plan)
        self._arrays.write(plan, self.tables)
        if self._media is not None:
            self._media.write(plan)
        n_logits = plan.n_logits
        called = time.monotonic()
        masks = None if self.masks is None else (self.masks.native, WAIT_SECONDS)
        n_pooled = 0 if self._pooled is None else self._pooled.begin(plan)
        is_whole = until < 0  # what did not run took no time, whichever its kernels
        asks = seconds is None and is_whole and bool(plan.rows)
        own = self.timer.begin(plan.n_tokens, n_logits) if asks else None
        timed = seconds if own is None else own
        if plan.rows:
            self._native.run(
                plan.n_tokens, len(plan.rows), n_logits, until, timed, logits, masks, n_pooled
            )
        if own is not None:
            self.timer.end()
        self.native_seconds += time.monotonic() - called
        outputs = self._arrays.read(n_logits)
        self._arrays.drew(plan, outputs)
        drafts, siblings = self._arrays.read_drafts(plan)
        vectors = () if self._pooled is None else self._pooled.vectors()
        ended = time.monotonic()
        self._idle.since = ended + PAUSE_SECONDS
        drafting = self._native.draft_seconds if plan.rows else 0.0
        towers = 0.0 if self._media is None else self._media.seconds
        return StepResult(
            outputs, ended - began, began, drafts, vectors, drafting, towers, siblings
        )

    def move(self, move: Move) -> None:
        for group in range(len(self.sizes.groups)):
            source, target = (
                self.tables.place(group, move.slot, index) for index in (move.src, move.dst)
            )
            self._kv.copy(group, source, target)

    def copy(self, copy: Copy) -> None:
        self._kv.copy_blocks(copy.src, copy.dst)

    def read_block(self, group: int, block: int) -> bytes:
        """All layers of the group, as ``KVMemory`` lays them out."""
        return bytes(self._kv.groups[group][block])

    def write_block(self, group: int, block: int, data: bytes) -> None:
        self._kv.groups[group][block] = np.frombuffer(data, np.uint8)

    def warm(self) -> None:
        """Returns when all KV memory has its pages: a measurement's first step is like the rest."""
        self._touching.join()

    def close(self) -> None:
        """Waits until packed weights are kept; then gives memory and threads back, whoever may keep
        a reference to this. Closing again does nothing."""
        super().close()
        for keeping in self._keeping:
            keeping.join()
        if hasattr(self, "_native"):
            self._stop_touching()
            del self._touching, self._native, self._kv, self.arena, self._arrays
            del self.tuning, self.timer
            del self._sampler, self._pool, self._pooled, self._media


class _Idle:
    """Whether nothing else is to be done; knows no executor, which a thread would keep alive."""

    since = 0.0

    def __call__(self) -> bool:
        return time.monotonic() >= self.since


def _packed(
    pool: _native.Pool,
    bundle: Bundle,
    binding: Binding,
    uses: Sequence[WeightUse],
    settings: CpuSettings,
) -> tuple[dict[WeightUse, NativeWeight], list[Keeping]]:
    """What is used of each model, and files that are left to be written."""
    found: dict[WeightUse, NativeWeight] = {}
    keeping: list[Keeping] = []
    huge = settings.huge_pages and gives_huge_pages()
    before = in_huge_pages() if huge else 0
    for part in binding.parts:
        own = [use for use in uses if use.names[0] in part.weights]
        with spread(settings.affinity):
            packer = Packer(pool, bundle.weights, part, huge)
            packed = packer.pack_all(own, settings.packed_cache)
        if not settings.huge_pages:
            for weight, *_ in packed.weights:
                _native.advise_huge_pages(weight, False)
        found |= zip(own, packed.weights, strict=True)
        keeping += [packed.keeping] if packed.keeping else []
    if huge:
        tell(sum(weight.size for weight, *_ in found.values()), in_huge_pages() - before)
    return found, keeping


def _refuse_heads(bundle: Bundle) -> None:
    towers = bundle.tower.encoders if bundle.tower else ()
    for kv in (*bundle.kv, *(kv for tower in towers for kv in tower.kv)):
        if kv.state_size:
            continue
        most = _native.MAX_LATENT_DIM if kv.latent else _native.MAX_HEAD_DIM
        if kv.head_dim % 16 or kv.latent % 16 or kv.head_dim > most:
            raise ModelError(
                f"layer {kv.layer} has heads of {kv.head_dim} numbers; the cpu executor takes "
                f"multiples of 16 up to {most}, --executor reference any"
            )


def _refuse_blocks(sizes: EngineSizes) -> None:
    """K is kept in tiles of ``LANES`` tokens: a part of one would be written behind its block."""
    size = sizes.block_size
    if size < 1 or size % LANES:
        raise ConfigError(
            f"KV blocks of {size} tokens; the cpu executor takes multiples of {LANES}: "
            f"use {max(1, -(-size // LANES)) * LANES}"
        )


def _arena(programs: Iterable[Lowered]) -> NDArray[np.uint8]:
    """As large as the largest needs it."""
    return np.zeros(max(each.arena_bytes for each in programs), np.uint8)


def _step_arrays(bundle: Bundle, sizes: EngineSizes, lowered: Lowered) -> StepArrays:
    """``lowered``: the target."""
    max_drafts = 0 if bundle.draft is None else MAX_DRAFTS
    has_head, inputs = bool(bundle.carried), bundle.target.inputs
    arrays = StepArrays(sizes, max_drafts, inputs, has_head=has_head)
    n_kept = arrays.keep_inputs(lowered.kept_columns)
    if n_kept and not lowered.takes_drafts:
        raise ModelError(f"{n_kept} drafted tokens: a scan has no convolution in front of it")
    return arrays
