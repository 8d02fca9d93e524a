"""Whose next tokens a step computes, where contexts of one tenant would hold up others' streams."""

from __future__ import annotations

from collections import defaultdict

from kvasir.core.request import LOWEST
from kvasir.sched.request import Request
from kvasir.timing.cost import Load
from kvasir.timing.pace import Pace


def abreast(ready: list[Request], pace: Pace) -> tuple[list[Request], dict[str, float]]:
    """Those of the decoding ``ready``, in their order, that the step takes on, and how many seconds
    longer it gets by the contexts of each tenant than one of all of them without contexts.

    Beside streams of others the contexts of a tenant's rows together take as long as
    ``pace.context_room`` says, however many and long they are; requests of higher classes do not
    wait for `batch` streams. What does not fit takes turns, the ones that were left out most often
    first. A look at all rows is all that it costs mostly.
    """
    costs, room = pace.costs, pace.context_room(len(ready))
    seconds = costs.costs.pair + costs.costs.entry
    if seconds * sum([request.n_computed for request in ready]) <= room:
        return ready, _contexts(ready, seconds)
    own = _held(ready)
    taken = {tenant: _turns(requests, int(room / seconds)) for tenant, requests in own.items()}
    left_out = {x for tenant, requests in own.items() for x in requests if x not in taken[tenant]}
    for request in ready:
        request.turn.n_left_out = request.turn.n_left_out + 1 if request in left_out else 0
    saved = costs.beyond(Load(len(left_out), len(left_out)))
    contexts = {
        tenant: max(0.0, seconds * sum([request.n_computed for request in requests]) - saved)
        for tenant, requests in taken.items()
    }
    return [request for request in ready if request not in left_out], contexts


def _contexts(ready: list[Request], seconds: float) -> dict[str, float]:
    """By their tenants what contexts take, of which an entry takes ``seconds``."""
    found: defaultdict[str, float] = defaultdict(float)
    for request in ready:
        found[request.standing.tenant] += seconds * request.n_computed
    return found


def _held(ready: list[Request]) -> dict[str, list[Request]]:
    """By their tenants the requests for which other tenants' streams would wait."""
    own: defaultdict[str, list[Request]] = defaultdict(list)
    for request in ready:
        own[request.standing.tenant].append(request)
    higher = {request.standing.tenant for request in ready if request.rank != LOWEST}
    if len(own) == 1:
        return {}
    return {
        tenant: requests if higher - {tenant} else [x for x in requests if x.rank == LOWEST]
        for tenant, requests in own.items()
    }


def _turns(requests: list[Request], n_room: int) -> set[Request]:
    """As many as have ``n_room`` entries together, one at least."""
    taken: set[Request] = set()
    for request in sorted(requests, key=lambda x: -x.turn.n_left_out):
        if taken and request.n_computed > n_room:
            break
        n_room -= request.n_computed
        taken.add(request)
    return taken
