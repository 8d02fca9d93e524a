"""Forms with a file (multipart/form-data, RFC 7578), read as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from kvasir.core.errors import RequestError

FILE_FIELD = "file"
MAX_PARTS = 16
MAX_FIELD_BYTES = 4096
"""Of the value of a field that is no file."""
FEED_BYTES = 64 * 1024
"""Parsed between two turns of the event loop: below a millisecond."""

Write = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class MultipartForm:
    """``filename`` is what the client calls its file: a text, and no path of ours."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


@dataclass(slots=True)
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: str = ""
    filename: str | None = None
    value: bytearray = field(default_factory=bytearray)


async def read_form(
    content_type: bytes, chunks: AsyncIterator[bytes], write: Write
) -> MultipartForm:
    """The fields, while ``write`` gets the content of the file, piece by piece. Raises RequestError
    (400, 415) and what ``write`` raises."""
    media, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if media.lower() != b"multipart/form-data" or not boundary:
        raise RequestError(
            "a file is sent as multipart/form-data, with a boundary",
            code="unsupported_media_type",
            status=415,
        )
    reader = _FormReader()
    try:
        parser = reader.parser(boundary)
        async for chunk in chunks:
            for start in range(0, len(chunk), FEED_BYTES):
                parser.write(chunk[start : start + FEED_BYTES])
                for piece in reader.take():
                    await write(piece)
                await asyncio.sleep(0)
    except FormParserError as error:
        raise _bad(f"the form is malformed: {error}") from None
    if not reader.is_whole:
        raise _bad("the form ends early: its last boundary is missing")
    if reader.form.filename is None:
        raise RequestError("the form has no file", param=FILE_FIELD)
    return reader.form


class _FormReader:
    """What the parser's callbacks add up to."""

    def __init__(self) -> None:
        self.form = MultipartForm()
        self.is_whole = False
        self._n_parts = 0
        self._part = _Part()
        self._header = b""
        self._value = b""
        self._pieces: list[bytes] = []

    def parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._add_header,
                "on_header_value": self._add_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._name,
                "on_part_data": self._add,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def take(self) -> list[bytes]:
        """What arrived of the file."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _begin(self) -> None:
        self._n_parts += 1
        if self._n_parts > MAX_PARTS:
            raise _bad(f"the form has more than {MAX_PARTS} parts")
        self._part = _Part()

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._part.headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _name(self) -> None:
        said = self._part.headers.get(b"content-disposition", b"")
        _, options = parse_options_header(said)
        part = self._part
        part.name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            part.filename = options[b"filename"].decode("utf-8", "replace")
        if part.name == FILE_FIELD and part.filename is None:
            raise RequestError("the file needs a filename", param=FILE_FIELD)
        if part.filename is not None and part.name != FILE_FIELD:
            raise _bad(f"the form has a file {part.name[:64]!r}: it is sent as {FILE_FIELD!r}")
        known = self.form.fields.keys() | ({FILE_FIELD} if self.form.filename is not None else {})
        if part.name in known:
            raise _bad(f"the form has {part.name[:64]!r} twice")
        self.form.filename = part.filename if part.name == FILE_FIELD else self.form.filename

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._part.filename is not None:
            self._pieces.append(data[start:end])
            return
        self._part.value += data[start:end]
        if len(self._part.value) > MAX_FIELD_BYTES:
            raise _bad(f"{self._part.name[:64]!r} has more than {MAX_FIELD_BYTES} bytes")

    def _end_part(self) -> None:
        if self._part.filename is None:
            self.form.fields[self._part.name] = self._part.value.decode("utf-8", "replace")

    def _end(self) -> None:
        self.is_whole = True


def _bad(message: str) -> RequestError:
    return RequestError(message, code="invalid_form")
