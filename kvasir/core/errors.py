"""Every error that a user can meet. A message names the sizes involved and the remedy."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` as valid Unicode: bytes of a file name that are not UTF-8, which Python keeps as
    lone surrogates, become \\xff and the like."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that stand for no byte
        data = text.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


class KvasirError(Exception):
    """Base of all errors raised on purpose.

    ``code`` is a stable machine-readable word, ``status`` the HTTP status that the server answers
    with.
    """

    code = "internal_error"
    status = 500
    retry_after: float | None = None
    """Seconds after which trying again is worthwhile, where that can be told."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        self.message = printable(message)
        super().__init__(self.message)
        if code is not None:
            self.code = code


class RequestError(KvasirError):
    """A request that cannot be served as written; ``param`` names the offending field."""

    code = "invalid_value"
    status = 400

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.param = param
        if status is not None:
            self.status = status


class ModelError(KvasirError):
    """A model file or folder that is missing, truncated, corrupt or unsupported."""

    code = "model_error"


class ConfigError(KvasirError):
    """Options that contradict each other, the model or the machine."""

    code = "config_error"


class CapacityError(KvasirError):
    """A bounded resource is exhausted: blocks, slots, queue."""

    code = "capacity"
    status = 429
