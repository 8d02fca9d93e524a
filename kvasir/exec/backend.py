"""What belongs to one way of computing: from a model and a config to an executor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from kvasir.checkpoints import build_program, ignorable
from kvasir.checkpoints.draft import build_draft
from kvasir.checkpoints.loaded import LoadedModel, load_model, model_facts
from kvasir.checkpoints.read_heads import LoadedHead, bind_features, bind_head, of_target_alone
from kvasir.checkpoints.read_medusa import LoadedMedusa, medusa_program
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.config.hardware import Hardware
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import Settings
from kvasir.config.resolved import EngineConfig, ExecutorConfig, ModelFacts, PythonConfig
from kvasir.exec.base import Executor
from kvasir.ir.bundle import (
    DRAFT,
    Bundle,
    Tower,
    draft_name,
    verify_joined,
    with_draft,
    with_drafts,
)
from kvasir.ir.numerics import MAX_ACT_BLOCK
from kvasir.ir.pool import with_pool
from kvasir.ir.program import Program
from kvasir.models.export import NO_EXPORT, Export
from kvasir.models.heads import HeadExport, head_program
from kvasir.models.medusa import MedusaExport
from kvasir.models.rope import rope_digest
from kvasir.weights.bind import Binding, bind
from kvasir.weights.input_order import refuse_input_order, with_input_order

ARITHMETIC = 4
"""Version of what the executors compute, bit for bit; tests/golden/bits.json holds them to it."""
Drafter = LoadedModel | LoadedHead | LoadedMedusa


class Wishes(msgspec.Struct, frozen=True):
    """What no option of an engine asks for."""

    hashes: bool = False
    """Record a hash of every logit row, where the executor can."""
    act_block: int = MAX_ACT_BLOCK
    """Most activations that share an int8 scale."""


class Built(msgspec.Struct, frozen=True):
    """An executor, and what names its answers."""

    executor: Executor
    numerics_id: str
    """Names the arithmetic: two executors with equal ids give equal bits."""
    weights: str
    """Names what the weights hold."""
    rope: str
    """Names the bits of the position encoding."""
    program: Program | None = None
    placement: str = ""
    """How the weights lie, for people."""
    kernels: str = ""
    """Which of its kernels were chosen, for people; empty: it has no choice."""
    tower: Tower | None = None


class Backend(Protocol):
    """A value without state: one entry of ``exec.backends`` each."""

    def probe(self) -> Hardware:
        """The machine that it computes on, and its free memory."""
        ...

    def open(self, path: str | None, mmproj: str | None = None) -> LoadedModel | None:
        """Raises ModelError. None when there is nothing to open."""
        ...

    def facts(self, model: LoadedModel | None) -> ModelFacts: ...

    def settings(
        self, options: EngineOptions, hardware: Hardware, reasons: dict[str, str]
    ) -> ExecutorConfig:
        """What the executor will run with; adds to the reasons. Raises ConfigError."""
        ...

    def build(
        self,
        model: LoadedModel | None,
        config: EngineConfig,
        wishes: Wishes,
        draft: Drafter | None = None,
    ) -> Built:
        """``draft``: the model or the head that drafts, where the config has one."""
        ...


def python_settings(
    options: EngineOptions, hardware: Hardware, reasons: dict[str, str]
) -> ExecutorConfig:
    """Of a backend that has nothing to decide."""
    return PythonConfig()


def no_choice(executor: Executor) -> str:
    """Of a backend whose kernels have no variants."""
    return ""


class Passes(Protocol):
    """Raw program -> the one that is executed; ``exec.cpu.passes`` says what the names mean."""

    def __call__(
        self,
        program: Program,
        *,
        dtype: str,
        formats: dict[str, str],
        act_block: int,
        kv_dtype: str,
    ) -> Program: ...


class ProgramBackend(msgspec.Struct, frozen=True):
    """Runs the program of a model file."""

    name: str
    probed: Callable[[], Hardware]
    passes: Passes
    placement: Callable[[Program, Binding], str]
    make: Callable[[Bundle, Binding, EngineConfig, Wishes], Executor]
    settings: Settings = python_settings
    kernels: Callable[[Executor], str] = no_choice

    def probe(self) -> Hardware:
        return self.probed()

    def open(self, path: str | None, mmproj: str | None = None) -> LoadedModel:
        return load_model(path, mmproj)

    def facts(self, model: LoadedModel | None) -> ModelFacts:
        return model_facts(self._some(model))

    def program(
        self,
        model: LoadedModel,
        config: EngineConfig,
        act_block: int = MAX_ACT_BLOCK,
        drafter: Drafter | None = None,
    ) -> tuple[Program, Binding]:
        """The program of a model after all passes, with what ``drafter`` reads of it, and all
        weights that it has."""
        export = _export_for(drafter)
        raw = build_program(model.config, max_positions=config.sizes.max_model_len, export=export)
        binding = bind(of_target_alone(raw), model.source, ignorable(model.config))
        if isinstance(drafter, LoadedHead):
            features = refuse_input_order(bind_features(drafter, raw))
            binding = replace(binding, others=(features,))
        raw, binding = with_input_order(raw, binding)
        lowered = self._lowered(config, binding, act_block, config.kv.kind.short)
        return lowered(raw), binding

    def _lowered(
        self, config: EngineConfig, binding: Binding, act_block: int, kv_dtype: str, dtype: str = ""
    ) -> Callable[[Program], Program]:
        """``dtype``: the model's, unless it is another's."""
        return partial(
            self.passes,
            dtype=dtype or config.model.dtype,
            formats=binding.formats(),
            act_block=act_block,
            kv_dtype=kv_dtype,
        )

    def _with_tower(
        self, bundle: Bundle, model: LoadedModel, config: EngineConfig, act_block: int
    ) -> tuple[Bundle, Binding]:
        """``bundle`` with the tower of a model that sees, whose keys and values are kept as they
        are computed, and the tower's weights."""
        if model.tower is None:
            return bundle, Binding({})
        own = model.tower
        raw = build_tower(own)
        seen = bind(raw, model.eyes or model.source, lambda tensor: not own.has(tensor))
        binding = refuse_input_order(seen)
        tower = raw.map(self._lowered(config, binding, act_block, "f32"))
        return replace(bundle, tower=tower), binding

    def _with_draft(
        self,
        bundle: Bundle,
        binding: Binding,
        draft: Drafter | None,
        config: EngineConfig,
        act_block: int,
    ) -> tuple[Bundle, Binding]:
        """``bundle`` with the program of a draft model, in its own arithmetic, or of a head; and
        the weights of both."""
        if draft is None or config.draft is None:
            return bundle, binding
        if isinstance(draft, LoadedHead):
            return self._with_head(bundle, binding, draft, config, act_block)
        if isinstance(draft, LoadedMedusa):
            return self._with_medusa(bundle, binding, draft, config, act_block)
        raw, own = build_draft(draft, config.sizes.max_model_len)
        kind, dtype = config.kv.kind.short, config.draft.dtype
        lowered = self._lowered(config, own, act_block, kind, dtype)(raw)
        joined = with_draft(bundle, lowered)
        return joined, replace(binding, others=(own.named(f"{DRAFT}."),))

    def _with_head(
        self,
        bundle: Bundle,
        binding: Binding,
        head: LoadedHead,
        config: EngineConfig,
        act_block: int,
    ) -> tuple[Bundle, Binding]:
        """``bundle`` with the program of a head, in the arithmetic of its target, which it shares
        weights with."""
        raw, carried = head_program(head, config.sizes.max_model_len)
        own = bind_head(head, raw)
        shared = {name: binding[name] for name in head.shared}
        both = refuse_input_order(Binding({**own.weights, **shared}))
        lowered = self._lowered(config, both, act_block, config.kv.kind.short)(raw)
        joined = with_draft(bundle, lowered, head.shared, carried)
        return joined, replace(binding, others=(*binding.others, own.named(f"{DRAFT}.")))

    def _with_medusa(
        self,
        bundle: Bundle,
        binding: Binding,
        heads: LoadedMedusa,
        config: EngineConfig,
        act_block: int,
    ) -> tuple[Bundle, Binding]:
        """``bundle`` with the programs of Medusa's heads, of as many as are asked for."""
        programs, bindings = [], []
        for i in range(min(heads.n_heads, config.scheduler.max_draft_tokens)):
            raw, bound = medusa_program(heads, i)
            own = refuse_input_order(bound)
            programs.append(self._lowered(config, own, act_block, config.kv.kind.short)(raw))
            bindings.append(own.named(f"{draft_name(i)}."))
        return with_drafts(bundle, programs), replace(binding, others=tuple(bindings))

    def build(
        self,
        model: LoadedModel | None,
        config: EngineConfig,
        wishes: Wishes,
        draft: Drafter | None = None,
    ) -> Built:
        model = self._some(model)
        program, binding = self.program(model, config, wishes.act_block, draft)
        bundle, more = self._with_tower(with_pool(program), model, config, wishes.act_block)
        binding = replace(binding, weights={**binding.weights, **more.weights})
        bundle, binding = self._with_draft(bundle, binding, draft, config, wishes.act_block)
        verify_joined(bundle)
        executor = self.make(bundle, binding, config, wishes)
        sources = [each.source for each in (model, draft) if each is not None]
        named = [x.content_hash if config.disk else x.stamp_hash for x in sources]
        if model.tower is not None:
            named.append(repr(model.tower.tile))  # of a file beside config.json, which no hash has
        for source in sources:
            source.check_unchanged()
            source.release()
        return Built(
            executor,
            self._numerics_id(config, wishes.act_block),
            "+".join(named),
            rope_digest(model.config, config.sizes.max_model_len),
            program,
            self.placement(program, binding),
            self.kernels(executor),
            bundle.tower,
        )

    def _numerics_id(self, config: EngineConfig, act_block: int) -> str:
        """Backend and version, mode and KV type. Every ISA level computes the same bits."""
        mode = f"int8/{act_block}" if config.model.dtype == "auto" else config.model.dtype
        return f"{self.name}-{ARITHMETIC}:{mode}:{config.kv.kind.name}"

    def _some(self, model: LoadedModel | None) -> LoadedModel:
        return self.open(None) if model is None else model


def _export_for(drafter: Drafter | None) -> Export:
    """What a drafter reads of its target."""
    if isinstance(drafter, LoadedHead):
        return HeadExport(drafter)
    return MedusaExport() if isinstance(drafter, LoadedMedusa) else NO_EXPORT
