"""Errors as OpenAI's clients expect them: {"error": {message, type, param, code}}."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import KvasirError, RequestError
from kvasir.serve.answers.errors import ErrorAnswer

_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_json = msgspec.json.Encoder()


def error_object(message: str, *, status: int, param: str | None, code: str | None) -> ErrorAnswer:
    fallback = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(status, fallback),
            "param": param,
            "code": code,
        }
    }


def error_body(message: str, *, status: int, param: str | None, code: str | None) -> bytes:
    return _json.encode(error_object(message, status=status, param=param, code=code))


def describe_error(error: KvasirError) -> ErrorAnswer:
    param = error.param if isinstance(error, RequestError) else None
    return error_object(error.message, status=error.status, param=param, code=error.code)
