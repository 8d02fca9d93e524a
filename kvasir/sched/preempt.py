"""Which running request gives its blocks, or its slot, to others when they run out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kvasir.sched.clocks import Tenant
from kvasir.sched.request import Request


def least_senior(running: Sequence[Request], tenants: Mapping[str, Tenant]) -> Request:
    """The last of the tenant that holds the most blocks for its weight; ``running`` is in the order
    that tenants have for their own requests, so their priorities choose among these alone.

    The first request of the tenant whose oldest one is the oldest of all is the most senior, and
    never gives way while others run. Until a request ends that is the same one whenever it runs: it
    always advances, and there is no livelock. O(len(running)), when blocks run out only.
    """
    own: defaultdict[str, list[Request]] = defaultdict(list)
    for request in running:
        own[request.standing.tenant].append(request)
    if len(own) > 1:
        senior = min(own, key=lambda name: tenants[name].oldest)
        if len(own[senior]) == 1:
            del own[senior]

    def holding(name: str) -> tuple[float, float, str]:
        tenant = tenants[name]
        n_held = sum([request.table.n_held for request in own[name]])
        return n_held / tenant.weight, tenant.time, name

    return own[max(own, key=holding)][-1]


def slots_for(
    waiting: Iterable[Request],
    running: Sequence[Request],
    may_have: Callable[[Request, Request], bool],
) -> Iterator[tuple[Request, Request]]:
    """Those of ``waiting`` whose tenant has no slot and may have one, each with who gives it: the
    least senior of the tenant that has the most, several at least, of those whose it may have.
    O(len(running)), when slots run out only."""
    n_slots = Counter(request.standing.tenant for request in running)
    last = {request.standing.tenant: request for request in running}
    givers = [last[tenant] for tenant, n in n_slots.most_common() if n > 1]
    for request in waiting:
        if request.standing.tenant not in last:
            yield from ((request, giver) for giver in givers if may_have(request, giver))
