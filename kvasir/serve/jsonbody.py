"""Bytes of a body to a plain JSON object, by one strict reading of RFC 8259."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kvasir.core.errors import RequestError


def parse_object(body: bytes) -> dict[str, Any]:
    """The object in ``body``. Raises RequestError (400) that names the byte offset where it is
    known.

    Refused beside malformed text: duplicate keys, NaN and Infinity, numbers beyond float64, lone
    surrogates, NUL in keys, text that is not UTF-8, nesting deeper than the interpreter's limit. -0
    is 0;
    integers keep every digit, so that the bounds of a field are checked on what was written.
    """
    value = _parse(body)
    if not isinstance(value, dict):
        raise _bad(f"the body must be a JSON object, not {_kind(value)} (byte 0)")
    return value


def _parse(body: bytes) -> object:
    try:
        value = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_unique)
    except RecursionError:
        raise _bad("the JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise _bad(
            f"the body is not UTF-8: {error.reason} (byte {error.start} of a text)"
        ) from None
    except msgspec.DecodeError as error:
        raise _bad(_explain(str(error), body)) from None
    except ValueError as error:
        raise _bad(f"the body is not JSON: {error}") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _bad(f"the key {key[:64]!r} occurs twice in one object", key[:64])
        seen.add(key)


def _explain(message: str, body: bytes) -> str:
    """``message`` with the offset where the standard library's parser stops, which counts from
    0."""
    try:
        json.loads(body)
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
