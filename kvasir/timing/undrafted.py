"""Why nothing was drafted in a step of a request, where the engine drafts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvasir.timing.records import Span

KIND = "undrafted"
"""Of marks and spans."""
REFUSED, SHORT, FORCED, MASKS = "refused", "short", "forced", "masks"
NO_MATCH, UNPAID, MISSED, BEHIND, BUDGET = "no_match", "unpaid", "missed", "behind", "budget"

SENTENCES: Mapping[str, str] = {
    REFUSED: "the request asked for no drafts",
    SHORT: "too few tokens were left to save a step",
    FORCED: "what follows was forced, and computed without being drawn",
    MASKS: "a grammar holds, whose masks nobody could make for what a draft model drafts",
    NO_MATCH: "there was nothing to draft: no text had what came before, or the context of the "
    "draft model was at its end",
    UNPAID: "drafts were not expected to pay, or for this step left out to see what it takes",
    MISSED: "the head had not read all of it, and cannot later",
    BEHIND: "the draft model had to read its text first",
    BUDGET: "the step, the context or the KV memory had no room for them",
}


class Undrafted(NamedTuple):
    reason: str
    n_steps: int


def undrafted_of(spans: Iterable[Span]) -> list[Undrafted]:
    """Of one life, most steps first."""
    found = [Undrafted(span.detail, span.steps) for span in spans if span.kind == KIND]
    return sorted(found, key=lambda each: -each.n_steps)
