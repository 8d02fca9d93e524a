"""Weights of classes and tenants as the options write them."""

from __future__ import annotations

from typing import get_args

from kvasir.config.options import EngineOptions
from kvasir.config.resolved import KVPolicy, SchedulingPolicy, SharingConfig
from kvasir.core.errors import ConfigError
from kvasir.core.request import PRIORITY_CLASSES

MAX_WEIGHT = 1e6
UNCACHED_THRESHOLD_MS = 100
"""Where a preempted request is computed again."""


def parse_sharing(options: EngineOptions) -> SharingConfig:
    """Raises ConfigError on weights that are no positive numbers, or too few or many."""
    policies: tuple[SchedulingPolicy, ...] = get_args(SchedulingPolicy)
    kv_policies: tuple[KVPolicy, ...] = get_args(KVPolicy)
    return SharingConfig(
        policy=policies[policies.index(options.scheduling_policy)],
        priority_weights=_class_weights(options.priority_weights),
        tenant_weights=_tenant_weights(options.tenant_weights),
        preemption_threshold=threshold_ms(options) / 1000,
        kv_policy=kv_policies[kv_policies.index(options.kv_policy)],
    )


def threshold_ms(options: EngineOptions) -> int:
    """Milliseconds that a realtime request waits before it takes the place of batch requests.

    What the prefix cache keeps is not computed again, so that preempting costs nearly nothing.
    """
    if options.preemption_threshold_ms is not None:
        return options.preemption_threshold_ms
    return 0 if options.enable_prefix_caching else UNCACHED_THRESHOLD_MS


def _class_weights(text: str) -> tuple[float, ...]:
    weights = tuple(_weight(item, "priority_weights", text) for item in text.split(","))
    if len(weights) != len(PRIORITY_CLASSES):
        names = ", ".join(PRIORITY_CLASSES)
        raise ConfigError(
            f"priority_weights {text!r} has {len(weights)} weights: give one for each of {names}"
        )
    return weights


def _tenant_weights(text: str) -> tuple[tuple[str, float], ...]:
    weights: dict[str, float] = {}
    for item in filter(None, text.split(",")):
        name, equals, weight = item.rpartition("=")
        if not equals or not name or name in weights:
            raise ConfigError(
                f"tenant_weights {text!r}: write each tenant once, as in alice=2,bob=0.5"
            )
        weights[name] = _weight(weight, "tenant_weights", text)
    return tuple(weights.items())


def _weight(item: str, name: str, text: str) -> float:
    try:
        weight = float(item)
    except ValueError:
        weight = 0.0
    if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        raise ConfigError(
            f"{name} {text!r}: {item!r} is not a weight between {1 / MAX_WEIGHT:g} and "
            f"{MAX_WEIGHT:g}"
        )
    return weight
