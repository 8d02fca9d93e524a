"""The policy that a configuration names."""

from __future__ import annotations

from kvasir.config.resolved import SharingConfig
from kvasir.core.errors import RequestError
from kvasir.core.request import EngineRequest
from kvasir.sched.fair import Fair
from kvasir.sched.policy import Fcfs, Policy, Static
from kvasir.timing.cost import CostModel


def make_policy(config: SharingConfig, costs: CostModel) -> Policy:
    if config.policy == "fair":
        return Fair(costs, config.priority_weights, dict(config.tenant_weights))
    return Static() if config.policy == "static" else Fcfs()


def check_priority(request: EngineRequest, policy: Policy, name: str) -> None:
    """Raises RequestError when ``request`` has a priority that ``policy`` would ignore."""
    standing = request.standing
    if policy.knows_classes or (standing.priority == 0 and standing.priority_class == "standard"):
        return
    param = "priority" if standing.priority else "priority_class"
    raise RequestError(
        f"{param} has no effect with --scheduling-policy {name}: use fair, or leave it out",
        param=param,
        code="unsupported_parameter",
    )
