"""Assembles an engine: model file, program, executor, scheduler."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvasir import _native
from kvasir.config.env import read_env
from kvasir.config.hardware import Hardware, probe
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import resolve
from kvasir.config.resolved import EngineConfig, ModelFacts
from kvasir.core.errors import ModelError
from kvasir.core.messages import Ready
from kvasir.engine.engine import Engine
from kvasir.engine.keys import ARITHMETIC, key_root
from kvasir.engine.prior import prior_costs
from kvasir.engine.tiered import block_sizes
from kvasir.exec.base import Executor, ExecutorSpec
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.packed import PackedCache
from kvasir.exec.disk.directory import Limits
from kvasir.exec.disk.store import DiskStore
from kvasir.exec.fake import FakeExecutor
from kvasir.exec.reference.executor import ReferenceExecutor, load_weights
from kvasir.formats.types import FORMATS
from kvasir.ir.numerics import MAX_ACT_BLOCK
from kvasir.ir.passes_cpu import lower_passes
from kvasir.ir.program import Program
from kvasir.models import ModelConfig, build_program, config_from, is_ignorable
from kvasir.models.rope import rope_digest
from kvasir.sched.cost import CostModel
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Proposer
from kvasir.weights.bind import Binding, bind
from kvasir.weights.default import default_model
from kvasir.weights.placement import placement
from kvasir.weights.source import ModelSource, open_model

FAKE_FACTS = ModelFacts(
    name="fake",
    vocab_size=256,
    context_length=4096,
    kv_values_per_token=16,
    weight_bytes=0,
    weight_dtype="float32",
    kv_vectors_per_token=2,
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model file and what it computes."""

    source: ModelSource
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine, the executor that it drives, and what both were resolved to."""

    engine: Engine
    executor: Executor
    config: EngineConfig
    key_root: str

    def ready(self) -> Ready:
        """What the API process needs to know."""
        spec = self.executor.spec
        return Ready(
            model=self.config.model.name,
            vocab_size=spec.vocab_size,
            max_model_len=self.config.model.max_model_len,
            n_blocks=sum(group.n_blocks for group in spec.groups),
            block_size=spec.block_size,
            numerics_id=spec.numerics_id,
            key_root=self.key_root,
            max_num_seqs=spec.max_num_seqs,
            reasons=self.config.reasons,
            warnings=self.config.warnings,
        )


def load_model(path: str | None) -> LoadedModel:
    """Opens a GGUF file or Hugging Face folder, the default model without ``path``. Raises
    ModelError."""
    source = open_model(path if path is not None else default_model())
    return LoadedModel(source, config_from(source))


def build_engine(
    options: EngineOptions,
    *,
    loaded: LoadedModel | None = None,
    proposer: Proposer | None = None,
    max_draft_tokens: int = 0,
    hashes: bool = False,
    act_block: int = MAX_ACT_BLOCK,
) -> BuiltEngine:
    """Everything from options to an engine ready for requests.

    ``hashes``: record a hash of every logit row, where the executor can. ``act_block``: most
    activations that share an int8 scale. Raises ModelError and ConfigError.
    """
    if options.executor == "fake":
        config = resolve_options(options, FAKE_FACTS, max_draft_tokens)
        spec = _spec(config, FAKE_FACTS, "fake")
        return _assemble(FakeExecutor(spec), config, proposer, key_root("fake", spec, "f32", ""))
    model = loaded or load_model(options.model)
    config = resolve_options(options, model_facts(model), max_draft_tokens)
    program, binding = bound_program(model, config, act_block)
    config = replace(config, reasons={**config.reasons, "weights": placement(program, binding)})
    spec = _spec(config, model_facts(model), numerics_id(config, act_block))
    executor: Executor
    if options.executor == "reference":
        executor = ReferenceExecutor(program, load_weights(program, binding), spec)
    else:
        run = config.executor
        folder, limit = run.packed_cache, run.packed_cache_bytes
        cache = PackedCache(folder, limit) if folder else None
        settings = CpuSettings(
            run.threads, run.isa or "scalar", cache, hashes, run.affinity, run.huge_pages
        )
        executor = CpuExecutor(program, binding, spec, settings)
    kv_type, rope = config.kv.kind.short, rope_digest(model.config)
    weights = model.source.content_hash if config.disk else model.source.stamp_hash
    root = key_root(weights, spec, kv_type, rope)
    model.source.check_unchanged()
    model.source.release()
    costs = CostModel(prior_costs(program, config.executor.threads))
    return _assemble(executor, config, proposer, root, costs)


def bound_program(
    model: LoadedModel, config: EngineConfig, act_block: int = MAX_ACT_BLOCK
) -> tuple[Program, Binding]:
    """The fused and placed program of a model, and its weights."""
    raw = build_program(model.config, max_positions=config.model.max_model_len)
    binding = bind(raw, model.source, lambda tensor: is_ignorable(model.config, tensor))
    program = lower_passes(
        raw,
        dtype=config.model.dtype,
        formats=binding.formats(),
        act_block=act_block,
        kv_dtype=config.kv.kind.short,
    )
    return program, binding


def model_facts(model: LoadedModel) -> ModelFacts:
    """What planning needs to know of a model."""
    config, tensors = model.config, model.source.tensors
    formats = {info.format for info in tensors.values() if len(info.shape) > 1}
    if not formats:
        raise ModelError(
            f"{model.source.path}: none of its {len(tensors)} tensors is a matrix: the embeddings "
            "and layers are missing"
        )
    return ModelFacts(
        name=model.source.name,
        vocab_size=config.vocab_size,
        context_length=config.max_positions,
        kv_values_per_token=2 * config.n_layers * config.n_kv_heads * config.head_dim,
        weight_bytes=sum(info.data.nbytes for info in tensors.values()),
        weight_dtype=_weight_dtype(formats),
        kv_vectors_per_token=2 * config.n_layers * config.n_kv_heads,
        windows=config.windows,
    )


def _weight_dtype(formats: set[str]) -> str:
    if any(FORMATS[name].split for name in formats):
        return "quantized"
    return {"BF16": "bfloat16", "F16": "float16"}.get(min(formats), "float32")


def numerics_id(config: EngineConfig, act_block: int = MAX_ACT_BLOCK) -> str:
    """Names the arithmetic: executor and its version, mode and KV type. Every ISA level of the
    native core computes the same bits."""
    mode = f"int8/{act_block}" if config.model.dtype == "auto" else config.model.dtype
    return f"{config.executor.name}-{ARITHMETIC}:{mode}:{config.kv.kind.name}"


def resolve_options(
    options: EngineOptions, facts: ModelFacts, max_draft_tokens: int = 0
) -> EngineConfig:
    """What ``options`` come to on this machine, in this environment. Raises ConfigError."""
    hardware: Hardware = probe(tuple(_native.levels()))
    env = read_env()
    return resolve(
        options,
        facts,
        hardware,
        isa=env.isa,
        cache=env.cache,
        max_draft_tokens=max_draft_tokens,
    )


def _spec(config: EngineConfig, facts: ModelFacts, numerics: str) -> ExecutorSpec:
    return ExecutorSpec(
        vocab_size=facts.vocab_size,
        max_model_len=config.model.max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        n_blocks=config.kv.n_blocks,
        block_size=config.kv.block_size,
        numerics_id=numerics,
        windows=config.kv.windows,
    )


def _assemble(
    executor: Executor,
    config: EngineConfig,
    proposer: Proposer | None,
    root: str,
    costs: CostModel | None = None,
) -> BuiltEngine:
    disk = None
    if config.disk is not None:
        limits = Limits(config.disk.n_bytes, block_sizes(executor))
        disk = DiskStore(config.disk.path, limits)
    scheduler = Scheduler(config.scheduler, proposer, root, costs, disk=disk)
    engine = Engine(executor, scheduler, overlap=config.loop.overlap, disk=disk)
    return BuiltEngine(engine, executor, config, root)
