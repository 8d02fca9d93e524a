"""A tiny target, and a draft model of its first layers that is right now and then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvasir.config.options import EngineOptions
from kvasir.core.messages import EngineStats, TokenEvent
from kvasir.core.request import EngineRequest
from kvasir.engine.build import build_engine
from tests import tiny
from tests.answers import Answer, answer_of
from tests.automaton import Ring


def write_pair(folder: Path, n_layers: int = 2, dtype: str = "BF16") -> tuple[str, str]:
    """Folders of a target in float32, and of its first ``n_layers`` in ``dtype``."""
    whole = tiny.llama()
    cut = {x: t for x, t in whole.tensors.items() if layer_of(x) < n_layers}
    config = {**whole.config, "num_hidden_layers": n_layers, "torch_dtype": "bfloat16"}
    draft = replace(whole, config=config, tensors=cut)
    target = tiny.write_hf(whole, folder / "target")
    return str(target), str(tiny.write_hf(draft, folder / "draft", dtype))


def layer_of(tensor: str) -> int:
    """-1 for what belongs to no layer."""
    parts = tensor.split(".")
    return int(parts[2]) if parts[1] == "layers" else -1


def answers_of(
    options: EngineOptions, requests: Sequence[EngineRequest]
) -> tuple[dict[int, Answer], EngineStats]:
    """What an engine of ``options`` answers to all, arriving two by two."""
    engine = build_engine(options, masks=Ring(tiny.VOCAB)).engine
    events: dict[int, list[TokenEvent]] = {request.id: [] for request in requests}
    waiting = list(requests)
    while waiting or engine.has_work:
        engine.submit(waiting[:2])
        del waiting[:2]
        for event in engine.step().events:
            events[event.id].append(event)
        engine.check()
    stats = engine.stats()
    engine.close()
    return {i: answer_of(told) for i, told in events.items()}, stats
