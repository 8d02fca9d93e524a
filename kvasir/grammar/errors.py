"""Why a constraint is refused."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvasir.core.errors import RequestError
from kvasir.validation.warn import escaped

Path = tuple[str | int, ...]


def pointer(path: Sequence[str | int]) -> str:
    """The JSON pointer (RFC 6901) of ``path``; the whole document is "#"."""
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return "/".join(("#", *(escaped(part) for part in parts)))


class UnsupportedSchema(RequestError):
    """A keyword of a schema that cannot be kept to exactly (400)."""

    def __init__(self, message: str, keyword: str) -> None:
        self.keyword = keyword
        super().__init__(message, code="unsupported_schema")


def unsupported(keyword: str, path: Path, why: str) -> UnsupportedSchema:
    """``path`` is that of the keyword."""
    where = f"'{escaped(keyword)}' at {pointer(path)}"
    return UnsupportedSchema(f"the schema's {where} is not supported: {why}", keyword)


class InvalidGrammar(RequestError):
    """What is not a schema, regular expression or grammar at all, or exceeds a bound (400)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_grammar")


class GrammarRefusal(msgspec.Struct, frozen=True, array_like=True):
    """One of the two as a value, for another process."""

    message: str
    keyword: str = ""

    def error(self) -> RequestError:
        if self.keyword:
            return UnsupportedSchema(self.message, self.keyword)
        return InvalidGrammar(self.message)
