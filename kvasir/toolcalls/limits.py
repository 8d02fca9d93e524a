"""When reasoning ends, for the grammar that an answer keeps to."""

from __future__ import annotations

import re

from kvasir.core.errors import RequestError
from kvasir.grammar.thinking import ThinkingLimit
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.reading import FIRST_MARK, LAST_MARK, Reading

_MARK = re.compile(f"([{chr(FIRST_MARK)}-{chr(LAST_MARK)}])")


def limit_of(
    reading: Reading, tokenizer: Tokenizer, budget: int | None, message: str = ""
) -> ThinkingLimit | None:
    """``reading``: its marks are bound. ``budget`` in tokens; None: reasoning ends when it is told
    to. ``message`` is written before its end where that is forced. None where the answer has no
    reasoning. Raises RequestError (400) for a message that ends it itself."""
    thoughts = reading.reasoning
    if thoughts is None:
        return None
    end = _parts(thoughts.end, reading)
    if any(isinstance(part, str) and part in message for part in end):
        raise RequestError(
            "reasoning_budget_message: the marker that ends reasoning comes behind it by itself",
            param="reasoning_budget_message",
        )
    close = tokenizer.encode(message, False, False) if message else []
    for part in end:
        spelled = tokenizer.encode(part, False, False) if isinstance(part, str) else [part]
        close += spelled
    return ThinkingLimit(
        begin=_parts(thoughts.begin, reading),
        end=end,
        close=tuple(close),
        is_open=reading.is_open,
        budget=budget,
    )


def _parts(text: str, reading: Reading) -> tuple[int | str, ...]:
    ids = {mark: token for token, mark in reading.marks.items()}
    return tuple(ids.get(piece, piece) for piece in _MARK.split(text) if piece)
