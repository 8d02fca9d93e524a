"""Assembles an engine: backend, model, config, executor, scheduler."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from kvasir.checkpoints.draft import as_draft
from kvasir.checkpoints.loaded import LoadedModel
from kvasir.checkpoints.read_heads import head_facts, load_head
from kvasir.checkpoints.read_medusa import METHOD as MEDUSA
from kvasir.checkpoints.read_medusa import load_medusa, medusa_facts
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import resolve
from kvasir.config.resolved import EngineConfig, ModelFacts
from kvasir.config.speculation import LOOKAHEAD, RECYCLING, Speculation, parse_speculation
from kvasir.core.errors import ModelError
from kvasir.core.messages import Ready
from kvasir.engine.engine import Engine
from kvasir.engine.keys import key_root
from kvasir.exec.backend import Backend, Drafter, Wishes
from kvasir.exec.backends import backend_of
from kvasir.exec.base import Executor
from kvasir.exec.disk.directory import Limits
from kvasir.exec.disk.saving import block_sizes
from kvasir.exec.disk.store import DiskStore
from kvasir.exec.lookup import native_lookup
from kvasir.grammar.masks import GrammarMasks, grammar_masks
from kvasir.ir.numerics import MAX_ACT_BLOCK
from kvasir.ir.pieces import TowerPieces
from kvasir.sampling.masks import Masks
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Proposer
from kvasir.speculate.executor import EVIDENCE, ExecutorProposer
from kvasir.speculate.lookahead import Lookahead
from kvasir.speculate.recycling import Recycling
from kvasir.speculate.several import DrafterPart, SeveralDrafters
from kvasir.timing.cost import CostModel
from kvasir.timing.prior import prior_costs
from kvasir.timing.towers import TowerCosts


class BuiltEngine(msgspec.Struct, frozen=True):
    """An engine, the executor that it drives, and what both were resolved to."""

    engine: Engine
    executor: Executor
    config: EngineConfig
    numerics_id: str
    key_root: str
    grammars: GrammarMasks
    """Its masks, unless it was given others."""

    @property
    def drafter(self) -> str:
        """The methods by which tokens are drafted, "+" between them; empty: nobody drafts."""
        asked = self.config.speculation
        return "" if asked is None else asked.name

    @property
    def follows_drafts(self) -> bool:
        """Sampled answers depend on what is drafted."""
        return self.config.sizes.kept_drafts > 0

    def ready(self) -> Ready:
        """What the API process needs to know."""
        sizes = self.config.sizes
        return Ready(
            model=self.config.model.name,
            vocab_size=sizes.vocab_size,
            max_model_len=sizes.max_model_len,
            n_blocks=sum(group.n_blocks for group in sizes.groups),
            block_size=sizes.block_size,
            numerics_id=self.numerics_id,
            key_root=self.key_root,
            max_num_seqs=sizes.max_num_seqs,
            reasons=self.config.reasons,
            warnings=self.config.warnings,
            drafter=self.drafter,
            follows_drafts=self.follows_drafts,
            vectors=self.config.model.vectors,
        )


def build_engine(
    options: EngineOptions,
    *,
    loaded: LoadedModel | None = None,
    proposer: Proposer | None = None,
    max_draft_tokens: int = 0,
    hashes: bool = False,
    act_block: int = MAX_ACT_BLOCK,
    masks: Masks | None = None,
) -> BuiltEngine:
    """Everything from options to an engine ready for requests.

    ``hashes``: record a hash of every logit row, where the executor can. ``act_block``: most
    activations that share an int8 scale. ``masks``: of constrained requests, those of grammars
    without. Raises ModelError and ConfigError.
    """
    backend = backend_of(options.executor)
    model = loaded or backend.open(options.model, options.mmproj)
    draft, draft_facts = open_draft(options, backend, model)
    config = resolve_options(options, backend.facts(model), max_draft_tokens, draft_facts)
    built = backend.build(model, config, Wishes(hashes, act_block), draft)
    costs = CostModel()
    if built.program is not None:
        prior = prior_costs(built.program, config.executor.threads)
        towers = TowerCosts(TowerPieces.of(built.tower)) if built.tower else None
        costs = CostModel(prior, towers)
        said = {"weights": built.placement} | ({"kernels": built.kernels} if built.kernels else {})
        config = replace(config, reasons={**config.reasons, **said})
    executor, numerics_id = built.executor, built.numerics_id
    root = key_root(built.weights, numerics_id, config.sizes, config.kv.kind.short, built.rope)
    disk = None
    if config.disk is not None:
        limits = Limits(config.disk.n_bytes, block_sizes(executor))
        disk = DiskStore(config.disk.path, limits)
    proposer = proposer or proposer_of(config)
    scheduler = Scheduler(config.scheduler, proposer, root, costs, disk=disk)
    grammars = grammar_masks(options.model, config.sizes.vocab_size)
    engine = Engine(
        executor,
        scheduler,
        overlap=config.loop.overlap,
        disk=disk,
        masks=masks or grammars,
        jump_ahead=config.loop.jump_ahead,
        tile=None if model is None or model.tower is None else model.tower.tile,
    )
    return BuiltEngine(engine, executor, config, numerics_id, root, grammars)


def resolve_options(
    options: EngineOptions,
    facts: ModelFacts,
    max_draft_tokens: int = 0,
    draft: ModelFacts | None = None,
) -> EngineConfig:
    """What ``options`` come to on this machine, in this environment. Raises ConfigError."""
    backend = backend_of(options.executor)
    return resolve(
        options,
        facts,
        backend.probe(),
        backend.settings,
        draft=draft,
        max_draft_tokens=max_draft_tokens,
    )


def open_draft(
    options: EngineOptions, backend: Backend, target: LoadedModel | None
) -> tuple[Drafter | None, ModelFacts | None]:
    """The draft model that ``options`` name, in the words of ``target``, or the head of it, and
    what planning needs to know of that. Raises ModelError and ConfigError."""
    asked = parse_speculation(options)
    if asked is None or not asked.has_program:
        return None, None
    try:
        if asked.is_head and target is not None:
            return _open_head(asked, target)
        model = backend.open(asked.model)
        model = None if model is None else as_draft(model)
        facts = backend.facts(model)
    except ModelError as error:
        raise ModelError(f"speculative_config's model: {error.message}", code=error.code) from None
    if model is None or target is None:
        return model, facts
    # Imported now: with the tokenizers library it is 25 ms of a start, and 5 MB.
    from kvasir.tokenizer.vocabularies import draft_vocabulary, words_of

    both = (words_of(x.source, x.config.vocab_size) for x in (target, model))
    found = draft_vocabulary(*both, may_differ=asked.may_differ)
    facts = replace(facts, vocabulary=found.reason)
    if found.ids is None:
        return model, facts
    return replace(model, ids=found.ids), replace(facts, vocab_size=target.config.vocab_size)


def _open_head(asked: Speculation, target: LoadedModel) -> tuple[Drafter, ModelFacts]:
    if asked.method == MEDUSA:
        heads = load_medusa(asked.model or "", target)
        return heads, medusa_facts(heads, target)
    head = load_head(asked.method, asked.model, target)
    return head, head_facts(head, target)


def proposer_of(config: EngineConfig) -> Proposer | None:
    """None: nobody asks for drafts."""
    asked = config.speculation
    if asked is None:
        return None
    parts = [DrafterPart(_proposer(one, config), one.n_tokens) for one in asked.parts]
    return SeveralDrafters(*parts) if len(parts) > 1 else parts[0].proposer


def _proposer(asked: Speculation, config: EngineConfig) -> Proposer:
    if asked.has_program and config.draft is not None:
        return ExecutorProposer(config.draft.max_model_len, EVIDENCE, asked.n_kept, asked.width)
    if asked.method == LOOKAHEAD:
        return Lookahead(*asked.window)
    if asked.method == RECYCLING:
        return Recycling(asked.n_stored)
    return native_lookup(asked)
