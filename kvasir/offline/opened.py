"""What an ``LLM`` has while it is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvasir.core.sizes import EngineSizes
from kvasir.core.vectors import VectorFacts
from kvasir.engine.build import BuiltEngine
from kvasir.offline.prompts import Prompt
from kvasir.offline.turns import Turns, closed
from kvasir.text.heads import Heads
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.params import check_prompt
from kvasir.vision.eye import Eye


@dataclass(frozen=True, slots=True)
class Opened:
    """What an LLM has until it is closed.

    No variable of an inner function: an error that came through it would keep it, by its cell.
    """

    built: BuiltEngine
    tokenizer: Tokenizer
    template: ChatTemplate
    draw_seed: Callable[[], int]
    """For requests without a seed."""
    numbers: Iterator[int]
    """Of prompts."""
    ids: Iterator[int]
    """Of the engine's requests."""
    heads: Heads
    eye: Eye

    @property
    def sizes(self) -> EngineSizes:
        return self.built.config.sizes

    @property
    def vectors(self) -> VectorFacts:
        return self.built.config.model.vectors


class ModelCalls:
    """Calls of one open model, each in its turn."""

    _open: Opened | None
    _turns: Turns

    def _has(self) -> Opened:
        if self._open is None:
            raise closed()
        return self._open


def check_ids(has: Opened, prompt: Prompt) -> None:
    sizes, name = has.sizes, prompt.name
    check_prompt(
        prompt.ids, vocab_size=sizes.vocab_size, max_model_len=sizes.max_model_len, name=name
    )
