"""A JSON object to a typed request: nothing is ignored, everything unknown is named."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from kvasir.core.errors import RequestError
from kvasir.validation.warn import bounded, escaped

Allowed = Mapping[str, tuple[object, ...]]
"""Fields of the API that are not implemented, with the values that ask for nothing."""

TEMPLATES = ("chat_template", "template")
"""Programs that a client would run here."""
_PATH = re.compile(r"`\$\.?([^`]*)`")
_Request = TypeVar("_Request", bound=msgspec.Struct)


def parse_request(
    request_type: type[_Request], body: dict[str, Any], unsupported: Allowed, *, strict: bool
) -> tuple[_Request, tuple[str, ...]]:
    """The request and a warning for each unknown field.

    Raises RequestError (400) on a value of the wrong type, a field that is not supported yet, and
    with
    ``strict`` on unknown fields. null is the same as absent.
    """
    known = frozenset(request_type.__struct_encode_fields__)
    present = {key: value for key, value in body.items() if value is not None}
    unknown = [key for key in present if key not in known and key not in unsupported]
    for key, value in present.items():
        if key not in known and key in unsupported:
            _check_idle(key, value, unsupported[key])
    if unknown and strict:
        raise RequestError(
            f"unknown field '{escaped(unknown[0])}'",
            param=unknown[0][:64],
            code="unknown_parameter",
        )
    warnings = bounded(unknown, lambda key: f"unknown field '{escaped(key)}' was ignored")
    return _convert(request_type, present), warnings


@contextmanager
def nested(name: str) -> Iterator[None]:
    """Errors in the block are of fields of the field ``name``."""
    try:
        yield
    except RequestError as error:
        param = f"{name}.{error.param}" if error.param else name
        message = f"{name}: {error.message}"
        raise RequestError(message, param=param, code=error.code, status=error.status) from None


def _check_idle(key: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(value == item and type(value) is type(item) for item in allowed):
        if key in TEMPLATES:
            raise RequestError(
                f"{key}: templates of requests are not taken, the model's own is used",
                param=key,
                code="template_not_allowed",
                status=403,
            )
        raise RequestError(
            f"{key} is not supported yet: leave it out", param=key, code="unsupported_parameter"
        )


def _convert(request_type: type[_Request], present: dict[str, Any]) -> _Request:
    try:
        return msgspec.convert(present, request_type)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except RecursionError:
        raise RequestError("the request is nested too deeply") from None


def converted(kind: type[_Request], value: object, name: str) -> _Request:
    """``value`` of the field ``name``. Raises RequestError (400)."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RequestError(f"{name}: {error}", param=name) from None


def _invalid(message: str) -> RequestError:
    found = _PATH.search(message)
    param = found.group(1) if found else None
    missing = re.search(r"missing required field `([^`]+)`", message)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
    text = message.split(" - at ")[0]
    return RequestError(f"{param}: {text}" if param else text, param=param or None)
