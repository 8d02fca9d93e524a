"""The order and the account that a configuration names."""

from __future__ import annotations

from kvasir.config.resolved import SharingConfig
from kvasir.core.errors import RequestError
from kvasir.core.request import EngineRequest
from kvasir.sched.clocks import Clocks
from kvasir.sched.fair import FairAccount, FairOrder
from kvasir.sched.order import Account, Fcfs, Order, Static
from kvasir.timing.cost import CostModel


def make_policy(config: SharingConfig, costs: CostModel) -> tuple[Order, Account | None]:
    """No account where nobody is owed anything."""
    if config.policy != "fair":
        return Static() if config.policy == "static" else Fcfs(), None
    clocks = Clocks(config.priority_weights, dict(config.tenant_weights))
    return FairOrder(clocks), FairAccount(clocks, costs)


def check_priority(request: EngineRequest, policy: str) -> None:
    """Raises RequestError when ``request`` has a priority that ``policy`` would ignore."""
    standing = request.standing
    if policy == "fair" or (standing.priority == 0 and standing.priority_class == "standard"):
        return
    param = "priority" if standing.priority else "priority_class"
    raise RequestError(
        f"{param} has no effect with --scheduling-policy {policy}: use fair, or leave it out",
        param=param,
        code="unsupported_parameter",
    )
