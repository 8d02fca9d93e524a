"""Bytes of a body to a plain JSON object, by one strict reading of RFC 8259."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.jsonshape import json_shape

MAX_VALUES = 2**19
"""Commas, arrays and objects of a body, outside texts: a parsed value takes up to 90 bytes, and all
are made in one call that holds the interpreter's lock, this many for 30 ms."""
MAX_KEYS = 2**16
"""Of all objects, four in each: every one is a text and an entry of a table, more than a value
costs."""
MAX_CONTAINERS = 2**14
"""Arrays and objects: 230 bytes with their contents, and work for the garbage collector."""
EXPLAINED_BYTES = 64 * 1024
"""Bodies up to this size are parsed a second time to say where they are wrong."""


def parse_object(body: bytes | memoryview) -> dict[str, Any]:
    """The object in ``body``. Raises RequestError (400) that names the byte offset where it is
    known.

    Refused beside malformed text: more than ``MAX_VALUES``, ``MAX_KEYS`` and ``MAX_CONTAINERS``,
    duplicate keys, NaN and Infinity, numbers beyond float64, lone surrogates, text that is not
    UTF-8, nesting deeper than the interpreter's limit. -0 is 0; integers keep every digit, so that
    the bounds of a field are checked on what was written.
    """
    value = _parse(body)
    if not isinstance(value, dict):
        raise _bad(f"the body must be a JSON object, not {_kind(value)} (byte 0)")
    return value


def _parse(body: bytes | memoryview) -> object:
    shape = json_shape(body)
    _check_count(shape.n_containers, MAX_CONTAINERS, "arrays and objects")
    _check_count(shape.n_values, MAX_VALUES, "values")
    _check_count(shape.n_keys, MAX_KEYS, "keys")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _bad("the JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise _bad(
            f"the body is not UTF-8: {error.reason} (byte {error.start} of a text)"
        ) from None
    except msgspec.DecodeError as error:
        raise _bad(_explain(str(error), body)) from None
    if _n_keys(value, shape.n_containers) != shape.n_keys:
        raise _repeated(body)
    return value


def _check_count(n: int, limit: int, what: str) -> None:
    if n > limit:
        raise RequestError(
            f"the body has {n} {what}, at most {limit} are read: send less in one request",
            code="too_many_values",
        )


def _n_keys(value: object, n_containers: int) -> int:
    """Keys of all objects in ``value``; of a key that occurs twice only one is left. Once all
    ``n_containers`` are found, what else is in them is not looked at: lists of numbers are long."""
    n, n_left = 0, n_containers
    found: list[Any] = [[value]]
    while found:
        inner = found.pop()
        if isinstance(inner, dict):
            n += len(inner)
            inner = inner.values()
        if n_left:
            inside = [x for x in inner if isinstance(x, (dict, list))]
            n_left -= len(inside)
            found.extend(inside)
    return n


def _repeated(body: bytes | memoryview) -> RequestError:
    try:
        if len(body) <= EXPLAINED_BYTES:
            json.loads(bytes(body), object_pairs_hook=_unique)
    except RequestError as error:
        return error
    return _bad("a key occurs twice in one object")


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _bad(f"the key {key[:64]!r} occurs twice in one object", key[:64])
        seen.add(key)


def _explain(message: str, body: bytes | memoryview) -> str:
    """``message`` with the offset where the standard library's parser stops, which counts from
    0."""
    if len(body) > EXPLAINED_BYTES:
        return f"the body is not JSON: {message}"
    try:
        json.loads(bytes(body))
    except json.JSONDecodeError as error:
        offset = len(error.doc[: error.pos].encode("utf-8", errors="surrogatepass"))
        return f"the body is not JSON: {error.msg} (byte {offset})"
    except (ValueError, RecursionError):
        return message
    return message


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _bad(message: str, param: str | None = None) -> RequestError:
    return RequestError(message, param=param, code="invalid_json")
