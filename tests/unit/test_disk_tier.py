"""What the scheduler makes of a disk tier, read off its plans."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import structs
from msgspec.structs import replace

from kvasir.config.resolved import PreemptionMode
from kvasir.core.messages import DiskStats
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.core.request import Context, EngineRequest, Standing
from kvasir.exec.checker import marks_of
from kvasir.kv.keys import KeyChain, chain_root
from kvasir.kv.tier import MAX_LOAD_SECONDS, RETRY, DiskTier, Fetch, OnDisk, block_name
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.records import Span
from kvasir.timing.timeline import Timeline
from tests.planned import Checkers, tables_after
from tests.sizes import changed, config_of

CONFIG = config_of(
    max_model_len=256,
    max_num_seqs=4,
    max_num_batched_tokens=256,
    n_blocks=8,
    block_size=16,
    enable_prefix_caching=True,
)
BLOCK = b"x" * 100
CHECKERS = Checkers()


class MemoryDisk:
    """Reads at once, or when told to; ``bandwidth`` in bytes per second."""

    def __init__(self, *, is_slow: bool = False, bandwidth: float = 1e9) -> None:
        self.stats = DiskStats()
        self.blocks: dict[bytes, bytes] = {}
        self.staged: dict[bytes, bytes] = {}
        self.fetches: list[Fetch] = []
        self.bandwidth = bandwidth
        self._is_slow = is_slow

    def __contains__(self, name: bytes) -> bool:
        return name in self.blocks

    def size(self, name: bytes) -> int:
        return len(self.blocks.get(name, b""))

    def seconds(self, n_bytes: int) -> float:
        return n_bytes / self.bandwidth

    def fetch(self, names: Sequence[bytes]) -> Fetch:
        fetch = Fetch(tuple(names))
        self.fetches.append(fetch)
        if not self._is_slow:
            self.finish(fetch)
        return fetch

    def finish(self, fetch: Fetch) -> None:
        for name in fetch.names:
            if name not in self.blocks:
                break
            fetch.blocks.append(self.blocks[name])
        fetch.is_done = True

    def stage(self, fetch: Fetch, names: Collection[bytes]) -> None:
        blocks = zip(fetch.names, fetch.blocks, strict=True)
        self.staged.update((name, block) for name, block in blocks if name in names)

    def clear(self) -> None:
        self.blocks.clear()


def ask(i: int, prompt: Sequence[int], max_tokens: int = 2, salt: str = "") -> EngineRequest:
    params = TokenParams(seed=0, max_tokens=max_tokens)
    return EngineRequest(i, tuple(prompt), params, context=Context(salt))


def step(made: Scheduler, disk: MemoryDisk) -> StepPlan | None:
    """Plan, transfer, draw 7 everywhere, commit."""
    plan = made.plan()
    if plan is None:
        return None
    for save in plan.saves:
        disk.blocks[save.name] = BLOCK
    for load in plan.loads:
        del disk.staged[load.name]
    outputs = (RowOutput(7),) * plan.n_logits
    CHECKERS.ran(made, plan, outputs)
    made.commit(plan, StepResult(outputs))
    made.check()
    return plan


def finish(made: Scheduler, disk: MemoryDisk, *requests: EngineRequest) -> list[StepPlan]:
    for one in requests:
        made.add(one)
    plans = []
    for _ in range(1000):
        if not made.has_work:
            return plans
        plan = step(made, disk)
        plans += [plan] if plan is not None else []
    raise AssertionError("it does not end")


def begins(plans: list[StepPlan]) -> int:
    """Tokens that the first row did not compute."""
    return plans[0].rows[0].start


def test_evicted_blocks_are_saved_and_loaded_again() -> None:
    disk = MemoryDisk()
    made = Scheduler(CONFIG, disk=disk)
    finish(made, disk, ask(1, range(80)))
    plans = finish(made, disk, ask(2, range(200, 280)))
    saved = [save.block for plan in plans for save in plan.saves]
    assert len(saved) == len(disk.blocks) == 3, "the last blocks of the first request"
    made.add(ask(3, range(80)))
    assert step(made, disk) is None, "its blocks are asked for"
    assert made.is_stalled is False, "and there at once"
    plan = step(made, disk)
    assert plan is not None
    assert plan.rows[0].start == 64
    assert [load.group for load in plan.loads] == [0, 0]
    assert {load.block for load in plan.loads} <= set(tables_after(CONFIG, [plan])[0][0])
    stats = made.stats()
    assert stats.disk is not None
    assert stats.disk.n_hit == 32


def test_a_new_engine_finds_all_that_was_saved() -> None:
    disk = MemoryDisk()
    first = Scheduler(CONFIG, key_root="root", disk=disk)
    finish(first, disk, ask(1, range(80)))
    for transfer in first.unsaved():
        disk.blocks[transfer.name] = BLOCK
        block = CHECKERS.of(first).read_block(transfer.group, transfer.block)
        CHECKERS.saved.put(transfer.name, block)
    assert list(first.unsaved()) == []
    assert (
        begins(finish(Scheduler(CONFIG, key_root="root", disk=disk), disk, ask(1, range(80)))) == 64
    )
    other_root = Scheduler(CONFIG, key_root="another model, type or arithmetic", disk=disk)
    assert begins(finish(other_root, disk, ask(1, range(80)))) == 0
    other_salt = Scheduler(CONFIG, key_root="root", disk=disk)
    assert begins(finish(other_salt, disk, ask(1, range(80), salt="tenant"))) == 0


def filled(disk: MemoryDisk, n_tokens: int = 80) -> KeyChain:
    """A chain of which ``disk`` has all full blocks."""
    chain = KeyChain(chain_root("", Context()), range(n_tokens), 16)
    marks = marks_of(range(n_tokens))
    for i, key in enumerate(chain.keys(n_tokens // 16)):
        disk.blocks[block_name(key, 0)] = BLOCK
        CHECKERS.saved.put(block_name(key, 0), bytes(marks[i * 16 : (i + 1) * 16]))
    return chain


def test_others_run_while_blocks_are_read() -> None:
    disk = MemoryDisk(is_slow=True)
    filled(disk)
    made = Scheduler(changed(CONFIG, n_blocks=32), disk=disk)
    made.add(ask(1, range(80)))
    assert made.plan() is None
    assert made.is_stalled
    made.add(ask(2, range(100, 120)))
    plan = step(made, disk)
    assert plan is not None
    assert [row.start for row in plan.rows] == [0]
    disk.finish(disk.fetches[0])
    plan = step(made, disk)
    assert plan is not None
    assert [row.start for row in plan.rows] == [20, 64]


def test_two_requests_load_what_they_share_once() -> None:
    disk = MemoryDisk(is_slow=True)
    filled(disk)
    made = Scheduler(changed(CONFIG, n_blocks=32), disk=disk)
    made.add(ask(1, range(80)))
    made.add(ask(2, range(80)))
    assert made.plan() is None
    assert len(disk.fetches) == 1
    disk.finish(disk.fetches[0])
    plan = step(made, disk)
    assert plan is not None
    assert [row.start for row in plan.rows] == [64, 64]
    assert len(plan.loads) == 4


def test_a_wait_for_disk_is_told() -> None:
    disk, clock = MemoryDisk(is_slow=True), Clock()
    filled(disk)
    made = Scheduler(CONFIG, disk=disk, clock=clock, timeline=Timeline(clock))
    made.add(ask(1, range(80)))
    clock.now = 0.25
    assert made.plan() is None
    clock.now = 1.0
    disk.finish(disk.fetches[0])
    step(made, disk)
    queued, read, hit = told(made, 1)[:3]
    assert (queued.kind, queued.seconds) == ("queued", 1.0)
    assert (read.kind, read.at, read.seconds, read.tokens) == ("read", 0.25, 0.75, 64)
    assert (hit.kind, hit.tokens) == ("prefix_hit", 64)


def test_a_cancelled_request_loads_nothing() -> None:
    disk = MemoryDisk(is_slow=True)
    filled(disk)
    made = Scheduler(CONFIG, disk=disk)
    made.add(ask(1, range(80)))
    assert made.plan() is None
    assert made.cancel(1)
    assert disk.fetches[0].is_cancelled
    made.take_events()
    assert not made.has_work
    assert not made.is_stalled


def test_a_reset_empties_the_disk() -> None:
    disk = MemoryDisk()
    filled(disk)
    made = Scheduler(CONFIG, disk=disk)
    made.reset_prefix_cache()
    assert begins(finish(made, disk, ask(1, range(80)))) == 0


def told(made: Scheduler, request_id: int) -> Sequence[Span]:
    story = made.timeline.story(request_id)
    assert story is not None
    return story.spans


def preempting(mode: PreemptionMode, disk: MemoryDisk) -> int:
    """Tokens loaded when two requests of 6 blocks share 8."""
    made = Scheduler(replace(CONFIG, preemption_mode=mode), disk=disk)
    finish(made, disk, ask(1, range(30), 60), ask(2, range(100, 130), 60))
    assert made.stats().n_preemptions > 0
    spans = [span for i in (1, 2) for span in told(made, i)]
    swapped = sum(span.tokens for span in spans if span.kind == "swapped_in")
    assert swapped == disk.stats.n_hit
    return swapped


def test_preempted_requests_come_back_as_asked() -> None:
    assert preempting("swap", MemoryDisk(bandwidth=1.0)) > 0
    assert preempting("recompute", MemoryDisk()) == 0
    assert preempting("auto", MemoryDisk()) > 0
    assert preempting("auto", MemoryDisk(bandwidth=1.0)) == 0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def tier_of(
    disk: MemoryDisk, clock: Clock, windows: Sequence[int] = (0,), max_bytes: int = 10_000
) -> DiskTier:
    """A tier of an engine that computes 1000 tokens a second."""
    return DiskTier(
        disk, windows, 16, lambda n, start: n / 1000, max_loading_bytes=max_bytes, clock=clock
    )


def find(tier: DiskTier, owner: str, chain: KeyChain, start: int = 0, stop: int = 5) -> int | None:
    on_disk = tier.find(owner, chain, start, stop, was_preempted=False)
    return None if on_disk is None else on_disk.depth


def test_what_takes_too_long_is_computed() -> None:
    disk, clock = MemoryDisk(is_slow=True), Clock()
    chain, tier = filled(disk), tier_of(disk, clock)
    assert find(tier, "a", chain) is None
    clock.now = MAX_LOAD_SECONDS - 1
    assert find(tier, "a", chain) is None
    clock.now = MAX_LOAD_SECONDS
    assert find(tier, "a", chain) == 0
    assert disk.fetches[0].is_cancelled
    assert len(disk.fetches) == 1


def test_what_is_slower_than_computing_is_not_loaded_but_now_and_then() -> None:
    disk = MemoryDisk(bandwidth=1000.0)
    chain, tier = filled(disk), tier_of(disk, Clock())
    found = [find(tier, str(i), chain) for i in range(RETRY)]
    assert found == [0] * (RETRY - 1) + [None]
    disk.bandwidth = 10_000
    assert find(tier, "b", chain) is None


def test_memory_bounds_what_is_on_its_way() -> None:
    disk = MemoryDisk(is_slow=True)
    chain, tier = filled(disk), tier_of(disk, Clock(), max_bytes=350)
    assert find(tier, "a", chain) is None
    assert len(disk.fetches[0].names) == 3
    other = KeyChain(chain_root("", Context("b")), range(80), 16)
    disk.blocks[block_name(other.keys(1)[0], 0)] = BLOCK
    assert find(tier, "b", other) is None
    assert len(disk.fetches) == 1, "it waits for memory"
    disk.finish(disk.fetches[0])
    on_disk = tier.find("a", chain, 0, 5, was_preempted=False)
    assert on_disk is not None
    tier.load("a", on_disk, ())
    assert find(tier, "b", other) is None
    assert len(disk.fetches) == 2


def test_a_block_lost_on_the_way_shortens_the_hit() -> None:
    disk = MemoryDisk(is_slow=True)
    chain, tier = filled(disk), tier_of(disk, Clock())
    assert find(tier, "a", chain) is None
    del disk.blocks[block_name(chain.keys(5)[3], 0)]
    disk.finish(disk.fetches[0])
    assert find(tier, "a", chain) is None
    disk.finish(disk.fetches[1])
    assert find(tier, "a", chain) == 3


def test_memory_that_changed_meanwhile_is_looked_at_again() -> None:
    disk = MemoryDisk(is_slow=True)
    chain, tier = filled(disk), tier_of(disk, Clock())
    assert find(tier, "a", chain) is None
    assert find(tier, "a", chain, start=2) is None
    assert disk.fetches[0].is_cancelled
    assert disk.fetches[1].names == disk.fetches[0].names[2:]


def test_a_window_needs_its_last_blocks_only() -> None:
    """A window of 20: a token after block 5 sees from token 61 on, in blocks 3 and 4."""
    disk = MemoryDisk()
    chain = filled(disk)
    for i in (1, 3, 4):
        disk.blocks[block_name(chain.keys(5)[i], 1)] = BLOCK
    tier = tier_of(disk, Clock(), windows=(0, 20))
    assert find(tier, "a", chain) is None
    on_disk = tier.find("a", chain, 0, 5, was_preempted=False)
    assert on_disk is not None
    assert on_disk.depth == 5
    assert [(i, group) for i, group, _ in on_disk.names] == [
        (0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (4, 0), (4, 1)
    ]  # fmt: skip
    tier.forget("a")
    del disk.blocks[block_name(chain.keys(5)[4], 1)]
    assert tier.find("b", chain, 0, 5, was_preempted=False) == OnDisk(0)


def test_nobody_gives_way_before_the_blocks_are_read() -> None:
    disk = MemoryDisk(is_slow=True)
    filled(disk)
    made = Scheduler(changed(CONFIG, max_num_seqs=1), disk=disk)
    made.add(structs.replace(ask(1, range(200, 210), 20), standing=Standing("batch")))
    step(made, disk)
    made.add(structs.replace(ask(2, range(80)), standing=Standing("realtime")))
    for _ in range(5):
        plan = step(made, disk)
        assert plan is not None
        assert [row.start for row in plan.rows] != [0], "it goes on"
    assert made.stats().n_preemptions == 0
    disk.finish(disk.fetches[0])
    plan = step(made, disk)
    assert plan is not None
    assert [row.start for row in plan.rows] == [64]
    assert made.stats().n_preemptions == 1


def test_nobody_waits_for_what_one_behind_has_loaded() -> None:
    disk = MemoryDisk(is_slow=True)
    filled(disk)
    made = Scheduler(changed(CONFIG, n_blocks=32), disk=disk)
    made.add(ask(1, range(80)))
    assert made.plan() is None
    disk.finish(disk.fetches[0])
    made.add(structs.replace(ask(2, range(80)), standing=Standing(priority=-1)))
    assert made.plan() is None, "it reads for itself"
    assert len(disk.fetches) == 2
    disk.finish(disk.fetches[1])
    plan = step(made, disk)
    assert plan is not None
    assert [row.start for row in plan.rows] == [64, 64]
