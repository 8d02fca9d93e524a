"""Two tenants of equal weight, one of which sends ten times as much."""

from __future__ import annotations

from collections.abc import Sequence

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Run, at_once, drive, equal_tokens
from bench.experiments.engines import (
    FAKE,
    FAKE_VOCAB,
    STEP_COST,
    cpu_like,
    fake_engine,
    greedy,
    tokens,
)
from kvasir.config.resolved import SchedulerConfig, SchedulingPolicy, SharingConfig
from kvasir.core.request import EngineRequest, Standing
from kvasir.core.sizes import EngineSizes

LOAD = 10
"""Requests of the heavy tenant for each of the light one."""
PROMPT, OUTPUT = 64, 48


def jain(shares: Sequence[float]) -> float:
    """1 when all are equal, 1/n when one has everything (Jain, Chiu, Hawe: A quantitative measure
    of fairness, 1984)."""
    total = sum(shares) ** 2
    return total / (len(shares) * sum(share**2 for share in shares)) if total else 1.0


def run(settings: Settings) -> Outcome:
    n_light = settings.pick(48, 6)
    requests = [
        _request(i, "light" if i % (LOAD + 1) == LOAD else "heavy")
        for i in range(n_light * (LOAD + 1))
    ]
    policies: tuple[SchedulingPolicy, ...] = ("fcfs", "fair")
    runs = {policy: _run(settings, policy, requests) for policy in policies}
    points = [_point(policy, found, requests) for policy, found in runs.items()]
    fair, fcfs = points[1], points[0]
    return Outcome(
        measured=(
            f"Jain index {fair['jain']:.3f}; first come, first served: {fcfs['jain']:.3f}, and the "
            f"light tenant is done after {fcfs['light_seconds'] / fair['light_seconds']:.1f}x the "
            "time"
        ),
        conditions=(
            f"{len(requests)} requests of {PROMPT} + {OUTPUT} tokens wait, {LOAD} of the heavy "
            "tenant for each of the light one; output tokens of both until the light one's last "
            f"request starts; virtual time, a step costs {STEP_COST}"
        ),
        summary={"jain": fair["jain"], "jain_fcfs": fcfs["jain"]},
        points=points,
        met=fair["jain"] >= 0.95,
        identical=equal_tokens(*runs.values()),
        engine=FAKE,
    )


def _request(i: int, tenant: str) -> EngineRequest:
    return greedy(i, tokens(FAKE_VOCAB, PROMPT, 1, i), OUTPUT, standing=Standing(tenant=tenant))


def _run(settings: Settings, policy: SchedulingPolicy, requests: list[EngineRequest]) -> Run:
    config = SchedulerConfig(
        EngineSizes(
            vocab_size=FAKE_VOCAB,
            max_model_len=256,
            max_num_seqs=settings.pick(16, 4),
            max_num_batched_tokens=256,
            n_blocks=512,
            block_size=16,
        ),
        sharing=SharingConfig(policy=policy),
    )
    made = fake_engine(config, cpu_like)
    return drive(made.engine, at_once(requests), made.clock)


def _point(policy: str, found: Run, requests: Sequence[EngineRequest]) -> Json:
    """Both tenants want more than they get until the light one has nothing that waits."""
    tenants = {request.id: request.standing.tenant for request in requests}
    light = [trace for i, trace in found.traces.items() if tenants[i] == "light"]
    until = max(trace.times[0] for trace in light)
    served = {"light": 0, "heavy": 0}
    for i, trace in found.traces.items():
        served[tenants[i]] += sum(time <= until for time in trace.times)
    return {
        "policy": policy,
        **served,
        "jain": round(jain(list(served.values())), 4),
        "light_seconds": round(max(trace.times[-1] for trace in light), 3),
    }


EXPERIMENT = Experiment(
    name="fair-tenants",
    title="Output tokens of two tenants, loads 10:1",
    claim="fair queueing gives tenants of equal weight equal service (Sheng et al., VTC, 2024)",
    target="Jain index at least 0.95",
    uses_model=False,
    seconds=5,
    chart=Chart(
        x="policy", x_label="scheduling", y_label="output tokens",
        lines={"light": "light tenant", "heavy": "heavy tenant"}, kind="bar",
    ),
    run=run,
)  # fmt: skip
