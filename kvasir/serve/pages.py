"""Pages of items, as OpenAI's clients ask for them and read them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvasir.core.errors import RequestError
from kvasir.serve.dialects.items import ALWAYS_TOLD, LOGPROBS
from kvasir.serve.parts import HOLE, Parts, filled, listed, spelled
from kvasir.serve.query import pop_list
from kvasir.serve.resolved import Json
from kvasir.serve.state.entries import Gone, Page
from kvasir.validation.warn import escaped


def read_include(query: dict[str, list[str]]) -> frozenset[str]:
    """Takes what of items is wanted beside the rest. Raises RequestError (400)."""
    return checked_include(pop_list(query, "include"))


def checked_include(names: Sequence[str]) -> frozenset[str]:
    """Raises RequestError (400)."""
    other = next((name for name in names if name not in (LOGPROBS, *ALWAYS_TOLD)), None)
    if other is not None:
        raise RequestError(
            f"include: '{escaped(other)}' is not supported yet: leave it out",
            param="include",
            code="unsupported_parameter",
        )
    return frozenset(names)


def included(item: Json, wanted: Collection[str]) -> Json:
    """``item`` without what is told only where it is ``wanted``."""
    if LOGPROBS in wanted or "content" not in item:
        return item
    content = [{**part, "logprobs": []} if "logprobs" in part else part for part in item["content"]]
    return {**item, "content": content}


def page_of(items: Sequence[Json], asked: Page) -> Json:
    """The page of ``items``, given the oldest first. Raises Gone (404) for ``after``."""
    ordered = list(reversed(items)) if asked.newest_first else list(items)
    if asked.after is not None:
        places = [i for i, item in enumerate(ordered) if item["id"] == asked.after]
        if not places:
            raise Gone("item", asked.after, "after")
        ordered = ordered[places[0] + 1 :]
    return paged(ordered[: asked.limit], len(ordered) > asked.limit)


def paged(items: Sequence[Json], has_more: bool) -> Json:
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    found: Json = {"object": "list", "data": items, "first_id": first, "last_id": last}
    return {**found, "has_more": has_more}


def spelled_page(page: Json) -> Parts:
    """A page as JSON, whose items may be large."""
    return filled({**page, "data": HOLE}, listed(map(spelled, page["data"])))
