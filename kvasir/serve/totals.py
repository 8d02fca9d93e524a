"""Counters that go on when an engine takes the place of another."""

from __future__ import annotations

from msgspec import structs

from kvasir.core.messages import DiskStats, DrafterStats, EngineStats

COUNTERS = (
    "step",
    "step_seconds",
    "n_preemptions",
    "n_cancelled",
    "n_failed",
    "prompt_tokens",
    "output_tokens",
    "prefix_queries",
    "prefix_hits",
    "n_received",
    "tokens_received",
    "n_unreachable",
    "n_expired",
    "n_masks",
    "mask_seconds",
    "n_forced",
    "n_drafts",
    "n_drafted",
    "n_accepted",
    "draft_seconds",
    "seconds_won",
)
DISK_COUNTERS = ("n_stored", "n_loaded", "n_dropped", "n_damaged", "n_hit")


def total(before: EngineStats, stats: EngineStats) -> EngineStats:
    """``stats`` of an engine, with what the engines before it had counted in the end."""
    counted = {name: getattr(before, name) + getattr(stats, name) for name in COUNTERS}
    drafters = _drafters(before.drafters, stats.drafters)
    return structs.replace(stats, **counted, disk=_disk(before.disk, stats.disk), drafters=drafters)


def at_rest(stats: EngineStats) -> EngineStats:
    """``stats`` at the end of an engine, as those of the next before it has done anything."""
    return structs.replace(stats, n_running=0, n_waiting=0, tokens_waiting=0)


def without_memory(stats: EngineStats) -> EngineStats:
    """``stats`` while there is no engine, nor blocks."""
    free = {"blocks_free": stats.blocks_total, "blocks_cached": 0}
    return structs.replace(at_rest(stats), **free)


def _drafters(
    before: tuple[DrafterStats, ...], drafters: tuple[DrafterStats, ...]
) -> tuple[DrafterStats, ...]:
    """By their methods, those of engines that drafted otherwise included."""
    found = {x.method: x for x in before}
    for one in drafters:
        old = found.get(one.method, DrafterStats(one.method))
        found[one.method] = one.plus(old.n_drafts, old.n_drafted, old.n_accepted)
    return tuple(found.values())


def _disk(before: DiskStats | None, disk: DiskStats | None) -> DiskStats | None:
    if before is None or disk is None:
        return disk
    counted = {name: getattr(before, name) + getattr(disk, name) for name in DISK_COUNTERS}
    return structs.replace(disk, **counted)
