"""The query of a request's target."""

from __future__ import annotations

from urllib.parse import parse_qs

from kvasir.core.errors import RequestError
from kvasir.core.warn import escaped
from kvasir.serve.exchange import Exchange

MAX_DIGITS = 18


def read_count(exchange: Exchange, name: str, default: int, most: int) -> int:
    """The one parameter that a route takes: ``name``, from 1 to ``most``. Raises RequestError
    (400)."""
    query = parse_qs(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    unknown = next((key for key in query if key != name), None)
    if unknown is not None:
        raise RequestError(
            f"'{escaped(unknown)}' is not known: this route takes {name}", param=name
        )
    texts = query.get(name, [str(default)])
    text = texts[-1]
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    if len(texts) > 1 or not is_number or not 1 <= int(text) <= most:
        said = f"{name} is '{escaped(text)}'" if len(texts) == 1 else f"{name} is said twice"
        raise RequestError(f"{said}: send it once, from 1 to {most}", param=name)
    return int(text)
