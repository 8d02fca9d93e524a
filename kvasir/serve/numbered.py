"""The requests of one stream, as soon as the engine's ids of them are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvasir.core.params import TokenParams
from kvasir.core.request import PLAIN, Context, EngineRequest, PoolKind, Standing
from kvasir.core.tiles import Media

Ids = tuple[int, ...]
Prompt = tuple[Ids, TokenParams]
Numbered = Callable[[int], Iterable[EngineRequest]]
"""Requests whose ids count up from the one that it is given."""


@dataclass(frozen=True, slots=True)
class Common:
    """What the choices of one stream have in common, each as in ``EngineRequest``."""

    context: Context = PLAIN
    hold_seconds: float = 0.0
    pooling: PoolKind | None = None
    n_scored: int = 0
    seconds: Ids = ()
    """Of each prompt, or none."""
    media: tuple[Media, ...] = ()
    """Of the one prompt."""
    prediction: Ids = ()


COMMON = Common()


def numbered(prompts: Sequence[Prompt], n: int, standing: Standing, common: Common) -> Numbered:
    """The first choice of each of ``prompts``, with ids for ``n``. A prompt that occurs again forks
    from where it occurs first."""
    owners: dict[tuple[Ids, int], int] = {}

    def request(number: int, second: int, prompt: Ids, params: TokenParams) -> EngineRequest:
        owner = owners.setdefault((prompt, second), number)
        return EngineRequest(
            number,
            prompt,
            params,
            common.context,
            standing,
            parent=-1 if owner == number else owner,
            hold_seconds=common.hold_seconds,
            pooling=common.pooling,
            n_scored=common.n_scored,
            media=common.media,
            second=second,
            prediction=common.prediction,
        )

    seconds = common.seconds or (0,) * len(prompts)

    def requests(first: int) -> Iterable[EngineRequest]:
        each = enumerate(zip(seconds, prompts, strict=True))
        return (request(first + i * n, x, *prompt) for i, (x, prompt) in each)

    return requests
