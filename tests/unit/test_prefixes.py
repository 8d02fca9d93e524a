"""What prompts begin with alike, as a tree; of one key alone, and bounded."""

from __future__ import annotations

import random
from array import array

from kvasir.core.request import Context
from kvasir.serve.prefixes import MAX_NODES, MAX_PROMPTS, MAX_TOKENS, NewestPrompts, Shared, tree
from kvasir.serve.resolved import Ids
from kvasir.timing.timeline import Timeline

PLAIN = Context()
SYSTEM = tuple(range(100, 140))


def timeline_of(hits: dict[int, int]) -> Timeline:
    told = Timeline(lambda: 0.0)
    for request, n in hits.items():
        told.queued(request, 1)
        told.mark(request, "started", n)
        told.finished(request, "stop")
    return told


def made(
    prefixes: NewestPrompts, told: Timeline | None = None, owner: bytes = b"a"
) -> list[Shared]:
    timeline = Timeline() if told is None else told  # one without steps is false
    work = tree(prefixes.of(owner, "m")[0], timeline, 4)
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: list[Shared] = end.value
            return found


def filled(*prompts: Ids, owner: bytes = b"a", context: Context = PLAIN) -> NewestPrompts:
    prefixes = NewestPrompts()
    for i, prompt in enumerate(prompts):
        prefixes.add(owner, "m", i, context, float(i), prompt)
    return prefixes


def test_runs_are_parted_where_prompts_part() -> None:
    prefixes = filled((*SYSTEM, 1, 2, 3), (*SYSTEM, 1, 2, 4), (*SYSTEM, 9), (7, 8))
    told = timeline_of({0: 0, 1: 42, 2: 40, 3: 0})
    first, second = made(prefixes, told)
    assert first == Shared(-1, 0, 40, SYSTEM[:4], 3, 2, 2.0)
    assert second == Shared(0, 40, 2, (1, 2), 2, 1, 1.0)


def test_a_repeated_prompt_is_found_but_for_its_last_token() -> None:
    prefixes = filled((1, 2, 3), (1, 2, 3))
    assert made(prefixes, timeline_of({0: 0, 1: 2})) == [Shared(-1, 0, 3, (1, 2, 3), 2, 1, 1.0)]


def test_nothing_is_shared_between_keys_or_contexts() -> None:
    prefixes = filled(SYSTEM, SYSTEM, owner=b"b")
    prefixes.add(b"a", "m", 7, PLAIN, 0.0, SYSTEM)
    prefixes.add(b"a", "m", 8, Context(salt="own"), 0.0, SYSTEM)
    prefixes.add(b"a", "other", 9, PLAIN, 0.0, SYSTEM)
    assert made(prefixes) == [] and prefixes.of(b"a", "m")[1] == 2


def test_random_prompts_give_the_tree_that_counting_gives() -> None:
    draw = random.Random(5)
    for _ in range(60):
        prompts = [
            tuple(draw.choice((1, 2, 300)) for _ in range(draw.randrange(1, 9)))
            for _ in range(draw.randrange(1, 12))
        ]
        found = made(filled(*prompts))
        for node in found:
            before, up = [], node
            while True:
                before = [up, *before]
                if up.parent < 0:
                    break
                up = found[up.parent]
            whole = tuple(i for x in before for i in x.ids)
            if all(len(x.ids) == x.n_tokens for x in before):
                assert node.n_prompts == sum(p[: len(whole)] == whole for p in prompts)
        shared = {p[:n] for p in prompts for n in range(1, len(p) + 1)}
        shared = {x for x in shared if sum(p[: len(x)] == x for p in prompts) > 1}
        assert sum(x.n_tokens for x in found) == len(shared)


def test_all_of_it_is_bounded() -> None:
    prefixes = filled(*((i % 100, i % 100, *range(2 * MAX_TOKENS)) for i in range(3 * MAX_PROMPTS)))
    own, _ = prefixes.of(b"a", "m")
    assert len(own) == MAX_PROMPTS
    assert sum(len(x.tokens) for x in own) <= MAX_PROMPTS * MAX_TOKENS * array("I").itemsize
    assert len(made(prefixes)) == MAX_NODES
