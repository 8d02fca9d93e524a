"""Who runs nothing gets a slot, whoever else waits before and may not have it."""

from __future__ import annotations

import pytest

from kvasir.sched.queues import PLACELESS_SECONDS
from tests.sharing import Load as VirtualLoad
from tests.sharing import request, sizes
from tests.unit.test_reach import first_of_other, seconds


@pytest.mark.parametrize("tenant", ["flood", "third"])
def test_who_waits_and_may_not_have_a_slot_keeps_it_from_nobody(tenant: str) -> None:
    """A request of the lowest class, whose turn it would be: that of the tenant that has all slots,
    or of one that may take none of them."""
    load = VirtualLoad(sizes(n_slots=8, n_blocks=4096, budget=512))
    load.add([request(8000, 8, 1, tenant="other")])
    load.add(request(i, 8, 900, tenant="flood") for i in range(40))
    for _ in range(3):
        load.step()
    load.add([request(7000, 8, 4, tenant=tenant, priority_class="batch")])
    for _ in range(3):
        load.step()
    assert PLACELESS_SECONDS <= first_of_other(load) <= PLACELESS_SECONDS + 3 * seconds(8)
    assert load.scheduler.stats().n_preemptions == 1


def test_a_slot_comes_from_the_next_where_who_has_most_keeps_his() -> None:
    """Of a higher class, which has had less than its share."""
    load = VirtualLoad(sizes(n_slots=8, n_blocks=4096, budget=512))
    load.add(request(i, 8, 900, tenant="some") for i in range(3))
    load.step()
    while load.now < 1:
        load.step()
    urgent = (request(10 + i, 8, 900, tenant="most", priority_class="realtime") for i in range(5))
    load.add(urgent)
    for _ in range(3):
        load.step()
    assert PLACELESS_SECONDS <= first_of_other(load) <= PLACELESS_SECONDS + 3 * seconds(8)
    running = [x.standing.tenant for x in load.scheduler.running]
    assert running.count("most") == 5


def test_a_prompt_that_has_no_room_keeps_a_slot_from_nobody() -> None:
    load = VirtualLoad(sizes(n_slots=2, n_blocks=118, budget=512))
    load.add(request(i, 300, 600, tenant="flood") for i in range(8))
    for _ in range(250):
        load.step()
    load.add([request(7000, 900, 4, tenant="before other")])
    for _ in range(3):
        load.step()
    assert load.scheduler.stats().blocks_free < 900 / 16
    assert PLACELESS_SECONDS <= first_of_other(load) <= PLACELESS_SECONDS + 0.02
    assert load.scheduler.stats().n_preemptions == 1
