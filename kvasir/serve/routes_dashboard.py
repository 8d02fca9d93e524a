"""GET /v1/dashboard, /v1/dashboard/history and /v1/dashboard/prefixes: how the server does now, and
in the last hour, and what prompts have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import msgspec

from kvasir.core.messages import EngineStats, Ready
from kvasir.serve import metric_table as table
from kvasir.serve.answers.page import (
    Dashboard,
    DashboardCore,
    DashboardHistory,
    DashboardKv,
    DashboardPrefixes,
    DiskFigures,
    SharedPrefix,
)
from kvasir.serve.dashboard import (
    MAX_STEPS,
    SAMPLE_SECONDS,
    WINDOWS,
    Sampled,
    rates,
    sample,
    shares,
    tick,
    used,
    window,
)
from kvasir.serve.exchange import Exchange
from kvasir.serve.prefixes import MAX_TOKENS, KnownPrompt, tree
from kvasir.serve.query import read_query
from kvasir.serve.service import Service
from kvasir.serve.slices import Work
from kvasir.timing.records import StepRecord
from kvasir.timing.timeline import Timeline
from kvasir.tokenizer.tokenizer import Tokenizer

SHOWN_TOKENS = 16
"""Of each run, as text."""


async def get_dashboard(service: Service, exchange: Exchange) -> None:
    """Figures of the default model, at most half a second old. Requests of other keys are counted,
    not named."""
    read_query(exchange, ())
    monitor, client = service.monitor, service.default.client
    info = client.info or await client.wait_ready()
    core = monitor.fresh
    if core is None:
        steps = await client.slices.run(_lately(client.timeline))
        core = monitor.fresh  # somebody else may have made one meanwhile
    if core is None:
        core = _told(service, info, steps)
        monitor.tell(core)
        monitor.ask(client.holdings)
    await monitor.hear()
    owner = service.owner(exchange)
    body = monitor.body(owner, partial(_body, service, core, info, owner))
    await exchange.send_bytes(body, b"application/json")


async def get_history(service: Service, exchange: Exchange) -> None:
    """Of the last hour, a row for every ten seconds."""
    read_query(exchange, ())
    samples = list(service.monitor.samples)
    epoch = time.time() - service.monitor.clock()
    later = samples[1:]
    found = [rates(a.tick, b.tick) for a, b in pairwise(samples)]
    history: DashboardHistory = {
        "object": "dashboard.history",
        "seconds": SAMPLE_SECONDS,
        "at": [round(epoch + x.tick.at, 1) for x in later],
        "output_rate": [x for x, _ in found],
        "prompt_rate": [x for _, x in found],
        "running": [x.running for x in later],
        "waiting": [x.waiting for x in later],
        "blocks_used": [x.blocks_used for x in later],
    }
    await exchange.send_json(history)


async def get_prefixes(service: Service, exchange: Exchange) -> None:
    """What the newest prompts of this key begin with. Prompts of other keys are counted alone."""
    read_query(exchange, ())
    model = service.default
    text, _ = await model.open()
    own, n_others = service.prefixes.of(service.owner(exchange), model.root)
    now = service.monitor.clock()
    work = _prefixes(own, model.client.timeline, text.tokenizer, now)
    told: DashboardPrefixes = {
        "object": "dashboard.prefixes",
        "prompts": len(own),
        "others": n_others,
        "max_tokens": MAX_TOKENS,
        "prefixes": await model.client.slices.run(work),
    }
    await exchange.send_json(told)


def _prefixes(
    own: Sequence[KnownPrompt], timeline: Timeline, tokenizer: Tokenizer, now: float
) -> Work[list[SharedPrefix]]:
    told: list[SharedPrefix] = []
    for x in (yield from tree(own, timeline, SHOWN_TOKENS)):
        yield
        one: SharedPrefix = {
            "parent": x.parent,
            "start": x.start,
            "tokens": x.n_tokens,
            "prompts": x.n_prompts,
            "hits": x.n_hits,
            "age": round(max(0.0, now - x.at), 1),
            "text": tokenizer.decode(x.ids, skip_special=False, continues=True),
        }
        told.append(one)
    return told


def newest(service: Service) -> Sampled:
    """Of now."""
    model = service.default
    return sample(service.monitor.clock(), model.client.stats, service.metrics, model.root)


def _lately(timeline: Timeline) -> Work[tuple[StepRecord, ...]]:
    yield
    return timeline.recent(MAX_STEPS)


def _told(service: Service, info: Ready, steps: tuple[StepRecord, ...]) -> DashboardCore:
    monitor, model = service.monitor, service.default
    stats, now = model.client.stats, newest(service)
    output_rate, prompt_rate = monitor.rates(tick(now.tick.at, stats))
    return {
        "object": "dashboard",
        "at": round(time.time(), 3),
        "model": model.root,
        "state": service.lifecycle.ready[1],
        "output_rate": output_rate,
        "prompt_rate": prompt_rate,
        "running": stats.n_running,
        "waiting": stats.n_waiting,
        "places": info.max_num_seqs,
        "expected_wait": round(stats.last_wait, 3),
        "windows": {str(x): window(monitor.before(now.tick.at, x), now) for x in WINDOWS},
        "refusals": _by_last(service, table.ERRORS),
        "finished": _by_last(service, table.SUCCESS),
        "prefix_queries": stats.prefix_queries,
        "prefix_hits": stats.prefix_hits,
        "drafted": stats.n_drafted,
        "accepted": stats.n_accepted,
        "preemptions": stats.n_preemptions,
        "engine_deaths": model.client.counts.deaths,
        "steps": shares(steps, model.client.timeline.clock()),
        "disk": _disk(stats),
    }


def _by_last(service: Service, info: table.MetricInfo) -> dict[str, int]:
    """A count by the last of its labels."""
    found: dict[str, int] = {}
    for values, n in service.metrics.totals(info).items():
        if n:
            found[values[-1]] = found.get(values[-1], 0) + int(n)
    return found


def _disk(stats: EngineStats) -> DiskFigures | None:
    disk = stats.disk
    if disk is None:
        return None
    return {
        "bytes": disk.n_bytes,
        "stored": disk.n_stored,
        "loaded": disk.n_loaded,
        "dropped": disk.n_dropped,
        "damaged": disk.n_damaged,
        "hit_tokens": disk.n_hit,
    }


def _body(service: Service, core: DashboardCore, info: Ready, owner: bytes) -> bytes:
    told: Dashboard = {**core, "kv": _kv(service, info, owner)}
    return msgspec.json.encode(told)


def _kv(service: Service, info: Ready, owner: bytes) -> DashboardKv:
    model, holdings = service.default, service.monitor.holdings
    stats = model.client.stats
    names = service.served.names(owner, model.root)
    rows = [(names.name(x.id), x) for x in holdings]
    others = [x for name, x in rows if name is None]
    per_context = -(-info.max_model_len // info.block_size)
    return {
        "block_size": info.block_size,
        "blocks": stats.blocks_total,
        "free": stats.blocks_free,
        "cached": stats.blocks_cached,
        "used": used(stats),
        "shared": max(0, sum(x.n_blocks for x in holdings) - used(stats)),
        "contiguous": per_context * len(holdings),
        "requests": [
            {"id": name, "tokens": x.n_tokens, "blocks": x.n_blocks}
            for name, x in rows
            if name is not None
        ],
        "others": {
            "running": len(others),
            "tokens": sum(x.n_tokens for x in others),
            "blocks": sum(x.n_blocks for x in others),
        },
    }
