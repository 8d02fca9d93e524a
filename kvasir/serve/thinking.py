"""Reasoning that ends when a request says so."""

from __future__ import annotations

from msgspec import structs

from kvasir.grammar.constraint import Constraint
from kvasir.grammar.thinking import Limited
from kvasir.serve.protocol.thinking import ThinkingWish
from kvasir.serve.text import TextModel
from kvasir.toolcalls.limits import limit_of
from kvasir.toolcalls.reading import Reading, bound


def with_limit(
    grammar: Constraint, wish: ThinkingWish | None, text: TextModel, reading: Reading | None
) -> Constraint:
    """``grammar`` behind reasoning that ends when it is asked to. Raises RequestError (400)."""
    if wish is None or (wish.budget is None and not wish.is_controlled):
        return grammar
    if text.reasoning is None:
        said = f"{wish.name}: the model's chat template knows no reasoning, and it was ignored"
        return structs.replace(grammar, warnings=(*grammar.warnings, said))
    if reading is None:  # the prompt says that there is none
        return grammar
    marked = bound(reading, text.tokenizer)
    limit = limit_of(marked, text.tokenizer, wish.budget, wish.message)
    if limit is None:
        return grammar
    return structs.replace(grammar, text=Limited(limit, grammar.text).text())
