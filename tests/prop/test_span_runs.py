"""Random arrivals of images whose tokens see each other, on few blocks: no step computes a part of
one, and all requests end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.groups import KVGroup
from kvasir.core.request import EngineRequest
from kvasir.core.tiles import TileSpec, media_at
from tests.forms import n_of
from tests.prop.test_scheduler_runs import Case, cases, play
from tests.sizes import changed

IMAGE = 29


def with_spans(config: SchedulerConfig, n: int) -> SchedulerConfig:
    """Room for ``n`` tokens in a step, and in windows."""
    sizes = config.sizes
    windows = tuple(
        group if group.state_bytes else _wider(replace(group, span=n), sizes.max_model_len)
        for group in sizes.windows
    )
    n_tokens = max(sizes.max_num_batched_tokens, n + sizes.max_num_seqs)
    config = changed(config, max_num_batched_tokens=n_tokens, windows=windows)
    return structs.replace(config, span_tokens=n)


def _wider(group: KVGroup, length: int) -> KVGroup:
    return replace(group, n_blocks=max(group.n_blocks, group.needs(length, 16)))


def with_images(request: EngineRequest, places: Sequence[int], tile: TileSpec) -> EngineRequest:
    """Tiles at ``places`` of a prompt, as far as they have room behind one another."""
    media, at, prompt = [], 0, list(request.prompt)
    for place in sorted(places):
        start = max(at, place)
        if start + tile.n_tokens <= len(request.prompt):
            pixels = bytes([place % 3]) * tile.n_bytes
            media.append(media_at(start, tile.n_tokens, pixels))
            at = start + tile.n_tokens
            prompt[start:at] = [IMAGE] * tile.n_tokens
    return structs.replace(request, prompt=tuple(prompt), media=tuple(media))


@st.composite
def span_cases(draw: st.DrawFn) -> Case:
    case, side = draw(cases()), draw(st.integers(2, 5))
    tile = TileSpec(side, 1, 1, 1.0, (0.0,) * 3, (1.0,) * 3)
    places = st.lists(st.integers(0, 150), max_size=4)
    requests = [with_images(one, draw(places), tile) for one in case.requests]
    config = with_spans(case.config, tile.n_tokens)
    return replace(case, config=config, requests=requests, tile=tile)


@settings(max_examples=n_of(40, 400), deadline=None)
@given(span_cases())
def test_everything_ends_and_no_image_is_cut(case: Case) -> None:
    events, executor, engine = play(case)
    stats = engine.stats()
    assert (stats.n_running, stats.n_waiting) == (0, 0)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
    assert stats.step == len(executor.plans)
    for request in case.requests:
        assert events[request.id][-1].finish in ("stop", "length", "cancelled", "error")
