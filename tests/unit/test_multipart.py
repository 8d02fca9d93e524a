"""Forms as they arrive: cut anywhere, malformed in any way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kvasir.core.errors import RequestError
from kvasir.serve.multipart import MAX_FIELD_BYTES, MAX_PARTS, MultipartForm, read_form

TYPE = b"multipart/form-data; boundary=xyz"
CONTENT = b"line\r\n--xy\r\n--xyzz--\r\n" + bytes(range(256))


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    head = f'--xyz\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode() + value + b"\r\n"


WHOLE = part("purpose", b"batch") + part("file", CONTENT, "../../etc/passwd") + b"--xyz--\r\n"


def read(body: bytes, size: int = 10**6, content_type: bytes = TYPE) -> tuple[MultipartForm, bytes]:
    found = bytearray()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def write(data: bytes) -> None:
        found.extend(data)

    return asyncio.run(read_form(content_type, chunks(), write)), bytes(found)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10**6])
def test_a_form_may_be_cut_anywhere(size: int) -> None:
    form, content = read(WHOLE, size)
    assert (form.fields, form.filename) == ({"purpose": "batch"}, "../../etc/passwd")
    assert content == CONTENT


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (WHOLE[:-10], "ends early"),
        (b"", "ends early"),
        (b"--abc\r\n", "malformed"),
        (part("purpose", b"batch") + b"--xyz--", "the form has no file"),
        (part("file", b"x") + b"--xyz--", "the file needs a filename"),
        (part("other", b"x", "name") + b"--xyz--", "a file 'other'"),
        (part("file", b"x", "a") + part("file", b"x", "b") + b"--xyz--", "'file' twice"),
        (part("a", b"x") + part("a", b"x") + b"--xyz--", "'a' twice"),
        (part("a", bytes(MAX_FIELD_BYTES + 1)) + b"--xyz--", f"more than {MAX_FIELD_BYTES} bytes"),
        (b"".join(part(str(i), b"") for i in range(MAX_PARTS + 1)), "more than 16 parts"),
        (b"--xyz\r\nA: " + b"x" * 10**5, "malformed"),
        (b"--xyz\r\n" + b"A: x\r\n" * 99, "malformed"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        read(body)
    assert caught.value.status == 400


@pytest.mark.parametrize("kind", [b"", b"application/json", b"multipart/form-data", b"text/plain"])
def test_other_types_are_refused(kind: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read(WHOLE, content_type=kind)
    assert caught.value.status == 415
