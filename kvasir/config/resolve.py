"""Options, model and machine decide a frozen ``EngineConfig``, each value with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
from msgspec.structs import replace as with_fields

from kvasir.config.disk import disk_config
from kvasir.config.drafting import (
    beside,
    beside_kept,
    beside_shares,
    draft_config,
    may_lag,
    may_rest,
    reads_along,
    share_of,
)
from kvasir.config.dtype import choose_dtype
from kvasir.config.hardware import Hardware
from kvasir.config.kvbudget import kv_budget, warnings_of
from kvasir.config.kvgroups import GroupBytes, KVDivision, best_stride, divide_layers
from kvasir.config.options import EngineOptions, check
from kvasir.config.pixels import pixel_bounds
from kvasir.config.resolved import (
    DType,
    EngineConfig,
    ExecutorConfig,
    KVConfig,
    LoopConfig,
    ModelFacts,
    ModelSettings,
    PreemptionMode,
    SchedulerConfig,
    SharingConfig,
)
from kvasir.config.sharing import parse_sharing, threshold_ms
from kvasir.config.sizes import format_size
from kvasir.config.spans import in_spans, span_step
from kvasir.config.speculation import Speculation, parse_speculation
from kvasir.core.errors import ConfigError
from kvasir.core.kvtypes import KV_OPTIONS, KVType
from kvasir.core.sizes import EngineSizes

DEFAULT_MAX_NUM_SEQS = 64
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
BLOCK_STEP = 16
"""Block sizes are multiples of this."""

Settings = Callable[[EngineOptions, Hardware, dict[str, str]], ExecutorConfig]
"""Decides what a backend's executor runs with, and adds to the reasons. Raises ConfigError."""


def resolve(
    options: EngineOptions,
    model: ModelFacts,
    hardware: Hardware,
    settings: Settings,
    *,
    draft: ModelFacts | None = None,
    max_draft_tokens: int = 0,
) -> EngineConfig:
    """Decide everything that ``options`` left open.

    ``draft``: of the draft model that they name. ``max_draft_tokens``: of a row, where they ask for
    no speculation. Raises ConfigError, with sizes and remedy, on options that contradict each
    other, a model or the machine.
    """
    both = model if draft is None else beside(model, draft, hardware.free_memory)
    planner = _Planner(_checked(options, model), both, hardware)
    if pixel_bounds(options.mm_processor_kwargs):
        planner.reasons["mm_processor_kwargs"] = f"{options.mm_processor_kwargs}: as asked"
    n_seqs = planner.given("max_num_seqs", DEFAULT_MAX_NUM_SEQS)
    n_tokens = planner.given("max_num_batched_tokens", DEFAULT_MAX_NUM_BATCHED_TOKENS)
    n_tokens = planner.beside_spans(n_tokens, n_seqs)
    speculation = planner.speculation()
    n_drafts = speculation.most_tokens if speculation else max_draft_tokens
    planner = planner.beside_drafts(n_seqs, n_drafts, speculation)
    kv = planner.kv(n_seqs, n_tokens)
    length = planner.length(kv)
    n_tokens = planner.step_tokens(n_tokens, length)
    planner.concurrency(kv, length)
    executor = planner.executor(settings)
    return EngineConfig(
        model=ModelSettings(
            options.served_model_name or model.name, planner.dtype(), model.vectors
        ),
        kv=kv,
        scheduler=planner.scheduler(
            planner.sizes(kv, length, n_seqs, n_tokens, n_drafts), n_drafts, speculation, draft
        ),
        executor=executor,
        loop=LoopConfig(planner.overlap(executor), options.jump_ahead),
        speculation=speculation,
        draft=draft_config(
            draft, speculation, planner.options, length, planner.reasons, planner.dtype()
        ),
        seed=options.seed,
        disk=disk_config(planner.options, planner.reasons),
        reasons=planner.reasons,
        warnings=warnings_of(options),
    )


class _Planner(msgspec.Struct, frozen=True):
    """Decides one value after the other and writes down why."""

    options: EngineOptions
    model: ModelFacts
    hardware: Hardware
    reasons: dict[str, str] = msgspec.field(default_factory=dict)

    def given(self, name: str, default: int) -> int:
        value: int | None = getattr(self.options, name)
        self.reasons[name] = f"{default}: default" if value is None else f"{value}: as asked"
        return default if value is None else value

    def beside_spans(self, n_tokens: int, n_seqs: int) -> int:
        is_asked, span = self.options.max_num_batched_tokens is not None, self.model.span_tokens
        found = span_step(span, n_tokens, n_seqs, self.model.name, is_asked=is_asked)
        if found > n_tokens:
            why = f"{found}: an image, beside {n_seqs} requests"
            self.reasons["max_num_batched_tokens"] = why
        return found

    def step_tokens(self, n_tokens: int, length: int) -> int:
        """Of one step: a longest prompt, where prompts are computed whole."""
        if not self.model.whole_prompts or n_tokens >= length:
            return n_tokens
        if self.options.max_num_batched_tokens is not None:
            raise ConfigError(
                f"max_num_batched_tokens {n_tokens} is less than max_model_len {length}, and "
                f"{self.model.name} computes a text in one step: raise it, or lower --max-model-len"
            )
        self.reasons["max_num_batched_tokens"] = f"{length}: the longest text"
        return length

    def sizes(
        self, kv: KVConfig, length: int, n_seqs: int, n_tokens: int, n_drafts: int
    ) -> EngineSizes:
        """States keep the inputs of ``n_drafts`` tokens."""
        windows = [replace(x, drafts=n_drafts) if x.state_bytes else x for x in kv.windows]
        return EngineSizes(
            vocab_size=self.model.vocab_size,
            max_model_len=length,
            max_num_seqs=n_seqs,
            max_num_batched_tokens=n_tokens,
            n_blocks=kv.n_blocks,
            block_size=kv.block_size,
            windows=tuple(windows),
        )

    def scheduler(
        self,
        sizes: EngineSizes,
        n_drafts: int,
        speculation: Speculation | None,
        draft: ModelFacts | None,
    ) -> SchedulerConfig:
        return SchedulerConfig(
            with_fields(
                sizes,
                kept_drafts=speculation.n_kept if speculation else 0,
                draft_width=speculation.width if speculation else 1,
                n_candidates=speculation.n_candidates if speculation else 0,
            ),
            max_draft_tokens=n_drafts,
            adapts_drafts=speculation is None or speculation.is_adaptive,
            drafters=tuple(x.method for x in speculation.parts) if speculation else (),
            min_draft_tokens=speculation.n_least if speculation else 0,
            lazy_drafts=draft is not None and may_lag(draft),
            draft_share=0.0 if draft is None else share_of(draft, self.model),
            draft_is_head=draft is not None and reads_along(draft),
            head_may_rest=draft is not None and may_rest(draft, speculation),
            enable_prefix_caching=self.options.enable_prefix_caching,
            itl_target=self.itl_target(),
            preemption_mode=self.preemption_mode(),
            sharing=self.sharing(),
            whole_prompts=self.model.whole_prompts,
            span_tokens=self.model.span_tokens,
        )

    def itl_target(self) -> float | None:
        """Seconds; None without a target, 0 for one that follows the decodes."""
        asked = self.options.itl_target_ms
        self.reasons["itl_target_ms"] = "none: default" if asked is None else f"{asked}: as asked"
        return None if asked is None else asked / 1000

    def sharing(self) -> SharingConfig:
        """How requests share the engine; each kind of share as the options write it."""
        options = self.options
        for name in ("scheduling_policy", "kv_policy"):
            value = getattr(options, name)
            is_default = value == getattr(EngineOptions, name)
            self.reasons[name] = f"{value}: {'default' if is_default else 'as asked'}"
        asked, threshold = options.preemption_threshold_ms, threshold_ms(options)
        cached = f"with{'' if options.enable_prefix_caching else 'out'} the prefix cache"
        self.reasons["preemption_threshold_ms"] = (
            f"{threshold}: {f'default {cached}' if asked is None else 'as asked'}"
        )
        return parse_sharing(options)

    def speculation(self) -> Speculation | None:
        asked = parse_speculation(self.options)
        if asked is not None:
            self.reasons["speculative_config"] = asked.reason
        return asked

    def beside_drafts(
        self, n_seqs: int, n_drafts: int, speculation: Speculation | None
    ) -> _Planner:
        """With the memory that is left beside what is kept of drafted tokens."""
        free = beside_kept(self.model, self.hardware.free_memory, n_seqs, n_drafts, self.reasons)
        free = beside_shares(self.model, free, n_seqs, speculation, self.reasons)
        return with_fields(self, hardware=with_fields(self.hardware, free_memory=free))

    def dtype(self) -> DType:
        """The numerics mode."""
        dtype, why = choose_dtype(self.options.dtype, self.model.weight_dtype)
        self.reasons["dtype"] = f"{dtype}: {why}"
        return dtype

    def kv_type(self) -> KVType:
        if self.options.kv_cache_dtype != "auto":
            kind, why = KV_OPTIONS[self.options.kv_cache_dtype], "as asked"
        elif self.dtype() == "float32":
            kind, why = KV_OPTIONS["float32"], "dtype is float32"
        else:
            kind, why = KV_OPTIONS["bfloat16"], "half of float32"
        self.reasons["kv_cache_dtype"] = f"{kind.name}: {why}"
        return kind

    def kv(self, n_seqs: int, n_tokens: int) -> KVConfig:
        size = self.options.block_size
        if size % BLOCK_STEP:
            nearest = -(-size // BLOCK_STEP) * BLOCK_STEP
            raise ConfigError(f"block_size {size} is not a multiple of {BLOCK_STEP}: use {nearest}")
        self.reasons["block_size"] = f"{size}: {'default' if size == BLOCK_STEP else 'as asked'}"
        kind = self.kv_type()
        length = self.options.max_model_len or self.model.context_length
        layers = divide_layers(
            self.model.windows,
            self.token_bytes(kind),
            size,
            length,
            self.model.state_bytes,
            tuple(n * kind.item_bytes + v * kind.scale_bytes for n, v in self.model.kv_layers),
        )
        layers = self.with_stride(layers, size)
        division = KVDivision(layers, size, n_seqs, n_tokens, self.options.enable_prefix_caching)
        n_blocks = self.n_blocks(self.kv_bytes(n_seqs, division), division)
        groups = in_spans(division.divide(n_blocks), self.model.span_tokens)
        if len(groups) > 1 or groups[0].window:
            self.reasons["kv_groups"] = "; ".join(
                f"{group.n_blocks} blocks for {each.n_layers} layers"
                + (f" of {group.kind}" if group.window else "")
                for group, each in zip(groups, layers, strict=True)
            )
        return KVConfig(kind, size, groups, tuple(each.block_bytes for each in layers))

    def with_stride(self, layers: tuple[GroupBytes, ...], size: int) -> tuple[GroupBytes, ...]:
        """States, the last group, with the distance of their snapshots."""
        *others, last = layers
        asked, is_caching = self.options.state_stride, self.options.enable_prefix_caching
        if asked is not None and not last.state_bytes:
            raise ConfigError(
                f"state_stride {asked} is for layers with a state, and {self.model.name} has none: "
                "leave --state-stride out"
            )
        if asked and not is_caching:
            raise ConfigError(
                f"state_stride {asked} places snapshots for the prefix cache: enable prefix caching"
            )
        if asked and asked % size:
            nearest = -(-asked // size) * size
            raise ConfigError(
                f"state_stride {asked} is not a multiple of the block size {size}: use {nearest}"
            )
        if not last.state_bytes:
            return layers
        stride, why = asked or 0, "as asked"
        if asked is None and is_caching:
            n_bytes = sum(group.block_bytes for group in others) // size
            stride = best_stride(last.state_bytes, n_bytes, size)
            why = f"{format_size(last.state_bytes)} a snapshot, {format_size(n_bytes)} a token"
        elif asked is None:
            why = "without the prefix cache"
        self.reasons["state_stride"] = f"{stride}: {why}"
        return (*others, with_fields(last, stride=stride))

    def token_bytes(self, kind: KVType) -> int:
        """Keys, values and their scales of one token."""
        scales = self.model.kv_vectors_per_token * kind.scale_bytes
        return self.model.kv_values_per_token * kind.item_bytes + scales

    def kv_bytes(self, n_seqs: int, division: KVDivision) -> int:
        if self.model.whole_prompts:  # theirs are those of one step, and of the next one
            n_seqs = min(n_seqs, 2)
        n_bytes, why = kv_budget(self.options, self.model, self.hardware, division, n_seqs)
        self.reasons["kv_memory"] = f"{format_size(n_bytes)}: {why}"
        return n_bytes

    def n_blocks(self, n_bytes: int, division: KVDivision) -> int:
        """Blocks of tokens in ``n_bytes``, as far as they are wanted."""
        most, cap = division.most(n_bytes), self.options.max_total_tokens
        if not most:
            raise ConfigError(
                f"kv memory of {format_size(n_bytes)} is less than one block of "
                f"{division.block_size} tokens ({format_size(division.n_bytes(1))}): "
                "raise --kv-memory"
            )
        if cap is None:
            return most
        if cap < division.block_size:
            raise ConfigError(
                f"max_total_tokens {cap} is less than one block: needs {division.block_size}"
            )
        self.reasons["max_total_tokens"] = f"{cap}: as asked"
        return min(most, cap // division.block_size)

    def length(self, kv: KVConfig) -> int:
        asked, context = self.options.max_model_len, self.model.context_length
        holds = _capacity(kv, asked or context)
        if asked is None:
            why = "the model's context" if context <= holds else "what the KV memory holds"
            self.reasons["max_model_len"] = f"{min(context, holds)}: {why}"
            return min(context, holds)
        if asked > context:
            raise ConfigError(
                f"max_model_len {asked} exceeds the model's context of {context} tokens: "
                "lower --max-model-len"
            )
        if asked > holds:
            raise ConfigError(
                f"max_model_len {asked} needs {_blocks(asked, kv.block_size)} blocks of "
                f"{kv.block_size} tokens, kv memory of {format_size(kv.n_bytes)} holds "
                f"{holds // kv.block_size}: lower --max-model-len or raise --kv-memory; kvasir "
                "plan memory compares what helps"
            )
        self.reasons["max_model_len"] = f"{asked}: as asked"
        return asked

    def concurrency(self, kv: KVConfig, length: int) -> None:
        """Requests that the blocks hold at a time, whatever ``max_num_seqs`` admits."""
        self.reasons["max_concurrency"] = (
            f"{kv.concurrency(length):.1f}: requests of {length} tokens in the KV blocks"
        )

    def executor(self, settings: Settings) -> ExecutorConfig:
        name, default = self.options.executor, EngineOptions.executor
        self.reasons["executor"] = f"{name}: {'default' if name == default else 'as asked'}"
        return settings(self.options, self.hardware, self.reasons)

    def preemption_mode(self) -> PreemptionMode:
        modes: dict[str, PreemptionMode] = {"swap": "swap", "recompute": "recompute"}
        mode = modes.get(self.options.preemption_mode, "auto")
        if mode == "swap" and self.options.kv_disk is None:
            raise ConfigError("preemption_mode 'swap' has nowhere to swap to: add --kv-disk DIR")
        return mode

    def overlap(self, executor: ExecutorConfig) -> bool:
        asked, is_free = self.options.async_scheduling, executor.leaves_python_free
        why = "steps leave Python free" if is_free else "steps run in Python"
        overlap = is_free if asked is None else asked
        self.reasons["async_scheduling"] = f"{overlap}: {why if asked is None else 'as asked'}"
        return overlap


def _checked(options: EngineOptions, model: ModelFacts) -> EngineOptions:
    """Without the prefix cache, where keys and values depend on what follows them. Raises
    ConfigError."""
    check(options)
    if not model.whole_prompts:
        return options
    if options.kv_disk is not None:
        raise ConfigError(
            "kv_disk keeps the beginnings of prompts, which tell nothing of others where tokens "
            "see what follows them: leave --kv-disk out"
        )
    return replace(options, enable_prefix_caching=False)


def _capacity(kv: KVConfig, length: int) -> int:
    """Tokens of a request that the blocks hold: ``length``, or fewer where a group has too few."""
    size = kv.block_size
    lacking = [x.n_blocks * size for x in kv.groups if x.n_blocks < x.needs(length, size)]
    return min(lacking, default=length)


def _blocks(n_tokens: int, block_size: int) -> int:
    return -(-n_tokens // block_size)
