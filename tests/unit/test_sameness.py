"""Requests that are sent again: the same, and not the same."""

from __future__ import annotations

import pytest

from kvasir.serve.sameness import sameness

TARGET = b"/v1/files\0"


def form(*parts: tuple[str, bytes], boundary: bytes = b"xyz", end: bytes = b"--\r\n") -> bytes:
    found = b""
    for said, value in parts:
        head = f"Content-Disposition: form-data; {said}\r\nContent-Type: text/plain\r\n\r\n"
        found += b"--" + boundary + b"\r\n" + head.encode() + value + b"\r\n"
    return found + b"--" + boundary + end


def digest(body: bytes, boundary: bytes = b"xyz", size: int = 10**6) -> bytes | None:
    read = sameness(TARGET, b"multipart/form-data; boundary=" + boundary)
    for start in range(0, len(body), size):
        read.update(body[start : start + size])
    return read.digest()


PURPOSE, FILE = ('name="purpose"', b"batch"), ('name="file"; filename="a"', b"--ab\r\n" * 9)
WHOLE = form(PURPOSE, FILE)


@pytest.mark.parametrize("size", [1, 3, 64, 10**6])
@pytest.mark.parametrize("boundary", [b"xyz", b"a", b"0123456789" * 7])
def test_forms_that_say_the_same(boundary: bytes, size: int) -> None:
    assert digest(form(PURPOSE, FILE, boundary=boundary), boundary, size) == digest(WHOLE)


@pytest.mark.parametrize(
    "other",
    [
        form(FILE, PURPOSE),
        form(PURPOSE),
        form(PURPOSE, FILE, FILE),
        form((PURPOSE[0], b"vision"), FILE),
        form(PURPOSE, (FILE[0], FILE[1][:-1])),
        form(PURPOSE, ('name="file"; filename="b"', FILE[1])),
        form(PURPOSE, (FILE[0], b""), (FILE[0], FILE[1])),
    ],
)
def test_forms_that_do_not(other: bytes) -> None:
    assert digest(other) not in (None, digest(WHOLE))


@pytest.mark.parametrize("body", [form(PURPOSE, FILE, end=b""), b"no form", b""])
def test_what_is_no_form_is_no_request(body: bytes) -> None:
    assert digest(body) is None
    read = sameness(TARGET, b"multipart/form-data")
    read.update(WHOLE)
    assert read.digest() is None


@pytest.mark.parametrize("kind", [b"", b"application/json", b"\xff; a"])
def test_other_bodies_are_their_bytes(kind: bytes) -> None:
    def of(body: bytes, target: bytes = TARGET) -> bytes | None:
        read = sameness(target, kind)
        read.update(body)
        return read.digest()

    assert of(b"ab") == of(b"ab")
    assert len({of(b"ab"), of(b"a b"), of(b"ab", b"/v1/batches\0"), digest(WHOLE)}) == 4
