"""When two requests are the same: if the bytes of their bodies are; forms if they say the same, for
each time that a client sends one it draws another boundary."""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

FORM = b"multipart/form-data"


class Sameness(Protocol):
    """Is given a body as it arrives. Equal digests: the same request; None: it is none, and who
    reads it refuses it."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes | None: ...


def sameness(target: bytes, content_type: bytes) -> Sameness:
    """For a body of ``content_type`` that is sent to ``target``."""
    media, options = parse_options_header(content_type)
    if media.lower() == FORM:
        return _OfForm(target, options.get(b"boundary", b""))
    return sha256(b"\0".join((target, content_type, b"")))


class _OfForm:
    """Of the ``Content-Disposition`` and the content of each part, in their order."""

    def __init__(self, target: bytes, boundary: bytes) -> None:
        self._hash = sha256(b"\0".join((target, FORM, b"")))
        self._part = sha256()
        self._name = self._value = b""
        self._is_whole = False
        self._parser: MultipartParser | None
        try:
            self._parser = self._new_parser(boundary) if boundary else None
        except FormParserError:
            self._parser = None

    def _new_parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._add_name,
                "on_header_value": self._add_value,
                "on_header_end": self._end_header,
                "on_part_data": self._add,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def update(self, data: bytes, /) -> None:
        try:
            if self._parser is not None:
                self._parser.write(data)
        except FormParserError:
            self._parser, self._is_whole = None, False

    def digest(self) -> bytes | None:
        return self._hash.digest() if self._is_whole else None

    def _begin(self) -> None:
        self._part = sha256()

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._hash.update(b"part" + sha256(self._value).digest())
        self._name = self._value = b""

    def _add(self, data: bytes, start: int, end: int) -> None:
        self._part.update(memoryview(data)[start:end])

    def _end_part(self) -> None:
        self._hash.update(self._part.digest())

    def _end(self) -> None:
        self._is_whole = True
