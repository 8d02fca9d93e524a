"""Whether the server is well, in parts: what ``/health`` says."""

from __future__ import annotations

from kvasir.config.hardware import memory_used
from kvasir.serve.answers.own import Check, Health
from kvasir.serve.service import Service

MAX_MEMORY = 0.95
"""Of the machine's memory, or of the control group's."""
TIMES_STEP = 3.0
"""A probe may take so many times a mean step, and always ``health_probe_ms``."""
SHARE_OF_HANG = 0.5
"""An engine that has stood still for so much of the time after which it is killed is not well."""


async def report(service: Service) -> tuple[bool, Health]:
    """Whether all is well, and ``{status, healthy, checks}``; each check says ``ok`` and what it
    was found from."""
    is_up, word = service.lifecycle.health
    checks: dict[str, Check] = {
        "memory": _memory(memory_used()),
        "model_loaded": _model(service),
        "steps": await _steps(service) if is_up else {"ok": False, "reason": word},
        "queue_depth": _queue(service),
    }
    is_well = is_up and all(check["ok"] for check in checks.values())
    if is_up and not is_well:
        word = "unwell: " + ", ".join(name for name, check in checks.items() if not check["ok"])
    return is_well, {"status": word, "healthy": is_well, "checks": checks}


def _memory(used: float) -> Check:
    return {"ok": used < MAX_MEMORY, "used": round(used, 4), "limit": MAX_MEMORY}


def _model(service: Service) -> Check:
    model = service.default
    return {"ok": service.is_loaded, "model": model.root}


def _queue(service: Service) -> Check:
    n, limit = service.default.client.stats.n_waiting, service.options.max_queued_requests
    return {"ok": n < limit, "waiting": n, "limit": limit}


async def _steps(service: Service) -> Check:
    """Of an engine that works, that it goes on; one that is idle is asked for a token."""
    client = service.default.client
    if client.state == "asleep":
        return {"ok": True, "reason": "the engine sleeps"}
    if client.gate.is_closed:
        return {"ok": True, "reason": "the operator paused the engine"}
    if client.n_streams or client.ledger.has_work:
        still, limit = service.supervisor.still if service.supervisor else (0.0, 1.0)
        limit *= SHARE_OF_HANG
        return {"ok": still < limit, "still_seconds": round(still, 3), "limit": round(limit, 3)}
    stats = client.stats
    step = stats.step_seconds / stats.step if stats.step else 0.0
    limit = max(service.options.health_probe_ms / 1000, TIMES_STEP * step)
    found = await service.prober.seconds(client, limit)
    seconds = None if found is None else round(found, 4)
    return {"ok": found is not None, "probe_seconds": seconds, "limit": round(limit, 3)}
