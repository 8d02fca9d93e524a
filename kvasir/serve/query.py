"""The query of a request's target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from kvasir.core.errors import RequestError
from kvasir.serve.exchange import Exchange
from kvasir.serve.state.entries import Page
from kvasir.validation.warn import MAX_NAME, escaped

MAX_DIGITS = 18
MAX_NUMBER = 10**9
"""Of an event."""


def read_query(exchange: Exchange, known: Sequence[str]) -> dict[str, str]:
    """The parameters that were sent. Raises RequestError (400) for what is not ``known`` or said
    twice."""
    return single(parsed(exchange), known)


def parsed(exchange: Exchange) -> dict[str, list[str]]:
    """Every parameter, with all that was said of it."""
    return parse_qs(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)


def single(query: Mapping[str, list[str]], known: Sequence[str]) -> dict[str, str]:
    """Raises as ``read_query``."""
    unknown = next((key for key in query if key not in known), None)
    if unknown is not None:
        raise RequestError(
            f"'{escaped(unknown)}' is not known: this route takes {', '.join(known) or 'nothing'}",
            param=unknown[:MAX_NAME],
        )
    twice = next((key for key, texts in query.items() if len(texts) > 1), None)
    if twice is not None:
        raise RequestError(f"{twice} is said twice: send it once", param=twice)
    return {key: texts[0] for key, texts in query.items()}


def pop_list(query: dict[str, list[str]], name: str) -> list[str]:
    """Takes a parameter that may be said several times, also as ``name[]``."""
    return [*query.pop(name, []), *query.pop(f"{name}[]", [])]


def pop_mapping(query: dict[str, list[str]], name: str) -> dict[str, str]:
    """Takes what is said as ``name[key]=value``. Raises RequestError (400) for a key that is said
    twice."""
    found: dict[str, str] = {}
    for full in [key for key in query if key.startswith(f"{name}[") and key.endswith("]")]:
        found[full[len(name) + 1 : -1]] = single({full: query.pop(full)}, (full,))[full]
    return found


def read_start(query: Mapping[str, str]) -> int | None:
    """The first event that ``stream`` and ``starting_after`` ask for; None where no stream is
    wanted. Raises RequestError (400)."""
    said = query.get("stream", "false")
    if said not in ("true", "false"):
        raise RequestError("stream is true or false", param="stream")
    if said == "true" and "starting_after" in query:
        return count_in(query, "starting_after", 0, MAX_NUMBER, 0) + 1
    if "starting_after" in query:
        raise RequestError("starting_after needs stream=true", param="starting_after")
    return 0 if said == "true" else None


def read_count(exchange: Exchange, name: str, default: int, most: int) -> int:
    """The one parameter that a route takes: ``name``, from 1 to ``most``. Raises RequestError
    (400)."""
    return count_in(read_query(exchange, (name,)), name, default, most)


def count_in(query: Mapping[str, str], name: str, default: int, most: int, least: int = 1) -> int:
    """Raises RequestError (400)."""
    text = query.get(name, str(default))
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    if not is_number or not least <= int(text) <= most:
        said = f"{name} is '{escaped(text)}'"
        raise RequestError(f"{said}: send it once, from {least} to {most}", param=name)
    return int(text)


def page_in(
    query: Mapping[str, str],
    *,
    default: int,
    most: int,
    label: str | None = None,
    order: str = "desc",
) -> Page:
    """``order``: where none is said. Raises RequestError (400)."""
    order = query.get("order", order)
    if order not in ("asc", "desc"):
        raise RequestError(f"order is '{escaped(order)}': it is asc or desc", param="order")
    return Page(
        limit=count_in(query, "limit", default, most),
        after=query.get("after"),
        newest_first=order == "desc",
        label=label,
    )
