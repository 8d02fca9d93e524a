"""All experiments, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from bench.experiments import (
    draft_rules,
    draft_trees,
    e01_kv_waste,
    e02_concurrency,
    e03_continuous_batching,
    e04_chunked_prefill,
    e05_shared_prefix,
    e06_many_shared,
    e07_long_conversation,
    e13_kv_types,
    e17_realtime,
    e18_swap_or_recompute,
    e20_knee,
    e23_fork,
    e24_slo,
    fair_tenants,
    grammar_cost,
    jump_ahead,
    lookup_drafts,
    program_batch,
    program_fork,
    scheduler_cost,
    unique_prompts,
)
from bench.experiments.base import Experiment
from kvasir.core.errors import ConfigError

EXPERIMENTS: tuple[Experiment, ...] = (
    e01_kv_waste.EXPERIMENT,
    e02_concurrency.EXPERIMENT,
    e03_continuous_batching.EXPERIMENT,
    e04_chunked_prefill.EXPERIMENT,
    e05_shared_prefix.EXPERIMENT,
    e06_many_shared.EXPERIMENT,
    e07_long_conversation.EXPERIMENT,
    e13_kv_types.EXPERIMENT,
    e17_realtime.EXPERIMENT,
    e18_swap_or_recompute.EXPERIMENT,
    e20_knee.EXPERIMENT,
    e23_fork.EXPERIMENT,
    e24_slo.EXPERIMENT,
    draft_rules.EXPERIMENT,
    draft_trees.EXPERIMENT,
    fair_tenants.EXPERIMENT,
    grammar_cost.EXPERIMENT,
    jump_ahead.EXPERIMENT,
    lookup_drafts.EXPERIMENT,
    program_batch.EXPERIMENT,
    program_fork.EXPERIMENT,
    scheduler_cost.EXPERIMENT,
    unique_prompts.EXPERIMENT,
)


def select(names: Sequence[str]) -> tuple[Experiment, ...]:
    """Those named, by full name or its first word; all without names. Raises ConfigError."""
    chosen = []
    for name in names:
        found = [x for x in EXPERIMENTS if name in (x.name, x.name.partition("-")[0])]
        if len(found) != 1:
            known = ", ".join(x.name for x in EXPERIMENTS)
            raise ConfigError(f"no experiment {name!r}: use one of {known}")
        chosen += found
    return tuple(chosen) or EXPERIMENTS


def listing() -> str:
    """One line for each: name, target, about how long it takes."""
    return "".join(
        f"{x.name:<24} {'model' if x.uses_model else 'fake':<6} ~{x.seconds:>3} s  {x.title}; "
        f"target: {x.target}\n"
        for x in EXPERIMENTS
    )
