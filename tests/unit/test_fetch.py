"""Images that are fetched: from domains that are named alone, from public addresses alone, whole
and in time; whatever an address says, nothing else is asked for."""

from __future__ import annotations

import asyncio
import base64
import io
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from kvasir.config.serving import media_domains
from kvasir.core.errors import ConfigError, KvasirError, RequestError
from kvasir.serve import fetch
from kvasir.serve.bodies import BodiesFull, BodyBudget
from kvasir.serve.fetch import ImageFetcher, _encoded, is_public, location_of
from kvasir.tokenizer.messages import ChatMessage, ImagePart, seeing

FILE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 300
FULL = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(FILE) + FILE


@contextmanager
def host(
    answer: bytes, *, closes: bool = True, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """A port that gives ``answer`` to whatever it is asked, and what that was."""
    asked: list[bytes] = []
    open_ones: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if tls is not None:
                    try:
                        connection = tls.wrap_socket(connection, server_side=True)
                    except OSError:  # who asks does not trust it
                        continue
                asked.append(connection.recv(65536))
                connection.sendall(answer)
                open_ones.append(connection)
                if closes:
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in open_ones:
        connection.close()


def fetched(
    address: str, allowed: str, *, limit: int = 2**20, seconds: float = 10.0
) -> tuple[ImagePart, BodyBudget]:
    image = ImagePart("", "messages[0].content[0].image_url", address=address)
    budget = BodyBudget(2 * limit, limit, patience=10.0)

    async def run() -> tuple[ChatMessage, ...]:
        fetcher = ImageFetcher(media_domains(allowed), seconds=seconds)
        with budget.body() as body:
            found = await fetcher.fetched([seeing(("what?", image))], body, "")
            assert budget._used >= len(FILE)
        fetcher.close()
        return found

    (message,) = asyncio.run(run())
    assert message.content == "what?" and message.parts[0] == "what?"
    (image,) = message.images
    return image, budget


def test_a_file_takes_the_place_of_its_address() -> None:
    with host(FULL) as (port, asked):
        image, budget = fetched(f"http://127.0.0.1:{port}/a/b.png?c=%20d#e", f"127.0.0.1:{port}")
    assert base64.b64decode(image.data) == FILE and not image.address
    assert image.where == "messages[0].content[0].image_url"
    assert budget._used == 0
    (said,) = asked
    lines = said.split(b"\r\n")
    assert lines[0] == b"GET /a/b.png?c=%20d HTTP/1.1"
    assert f"Host: 127.0.0.1:{port}".encode() in lines
    assert not any(line.lower().startswith((b"cookie", b"authorization")) for line in lines)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_files_of_images_are_known(form: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, form)
    assert base64.b64decode(_encoded(ImagePart("", "x"), [file.getvalue()]).data)


def test_a_host_that_is_named_itself_may_be_of_this_machine() -> None:
    with host(FULL) as (port, _):
        assert fetched(f"http://localhost:{port}/", f"localhost:{port}")[0].data


REFUSED: dict[str, tuple[bytes, str]] = {
    "elsewhere": (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/\r\n\r\n", "redirects"),
    "missing": (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "status 404"),
    "compressed": (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\nx", "compresses"),
    "large": (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2**20 + 1), "1048576 bytes"),
    "short": (FULL[:-1], "did not send it whole"),
    "text": (
        b"HTTP/1.1 200 OK\r\n\r\nBMW: a secret of the host, of several lines",
        "no file of PNG",
    ),
    "nothing": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "no file of PNG"),
    "no HTTP": (b"hello\r\n\r\n", "did not send it whole"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_host_may_not_answer(name: str) -> None:
    answer, why = REFUSED[name]
    with host(answer) as (port, asked), pytest.raises(RequestError, match=why) as caught:
        fetched(f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}")
    assert caught.value.code == "invalid_image_url"
    assert len(asked) == 1


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with host(FULL) as (port, asked), host(b"") as (proxy, asked_of_proxy):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        fetched(f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}")
    assert len(asked) == 1 and not asked_of_proxy


def test_a_host_that_says_nothing_is_given_up() -> None:
    with (
        host(b"HTTP/1.1 200 OK\r\n", closes=False) as (port, _),
        pytest.raises(RequestError, match=r"0\.2 s"),
    ):
        fetched(f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}", seconds=0.2)


@pytest.mark.parametrize(
    ("address", "allowed", "why"),
    [
        ("http://images.example/x", "", "data URI"),
        ("http://images.example/x", "other.example", "names a domain"),
        ("http://images.example:81/x", "images.example", "names a domain"),
        ("http://sub.images.example/x", "images.example", "names a domain"),
        ("http://images.example./x", "images.example", "names a domain"),
        ("http://images.example@127.0.0.1/x", "images.example", "without a user"),
        ("http://images.example:1@127.0.0.1/", "images.example", "without a user"),
        ("http://127.0.0.1\\@images.example/", "images.example", "without a user"),
        ("http://0x7f000001/", "127.0.0.1", "names a domain"),
        ("http://[::ffff:127.0.0.1]/", "127.0.0.1", "names a domain"),
        ("http://images.example:99999/", "images.example", "is no address"),
        ("http://[::1/", "[::1]", "is no address"),
        ("http:///x", "images.example", "without a user"),
    ],
)
def test_addresses_that_are_not_asked(
    address: str, allowed: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a name was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    with pytest.raises(RequestError, match=why) as caught:
        fetched(address, allowed)
    assert caught.value.status == 400


def looked_up(*addresses: str) -> Callable[..., list[object]]:
    def found(name: str, port: int, **_: object) -> list[object]:
        return [(0, 0, 0, "", (address, port)) for address in addresses]

    return found


@pytest.mark.parametrize(
    "addresses",
    [
        *(("127.0.0.1",), ("10.1.2.3",), ("169.254.169.254",), ("100.64.0.1",), ("0.0.0.0",)),
        *(("::1",), ("fe80::1",), ("fd00::1",), ("::ffff:10.0.0.1",), ("64:ff9b::7f00:1",)),
        *(("fec0::1",), ("3fff::1",), ("3fff:fff::1",)),
        *(("2002:7f00:1::",), ("224.0.0.1",), ("93.184.215.14", "127.0.0.1"), ()),
    ],
)
def test_a_name_that_leads_inside_is_refused(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", looked_up(*addresses))
    with pytest.raises(RequestError, match="address") as caught:
        fetched("http://images.example/", "images.example")
    assert not any(address in str(caught.value) for address in addresses)


def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it resolved to is what is asked, whatever it would resolve to a moment later."""
    names: list[str] = []
    monkeypatch.setattr("kvasir.serve.fetch.is_public", lambda address: True)
    with host(FULL) as (port, asked):

        def look_up(name: str, at: int, **_: object) -> list[object]:
            names.append(name)
            return [(0, 0, 0, "", ("127.0.0.1" if len(names) == 1 else "127.0.0.9", at))]

        monkeypatch.setattr("kvasir.serve.fetch.socket.getaddrinfo", look_up)
        fetched(f"http://images.example:{port}/", f"images.example:{port}")
    assert names[0] == "images.example" and "images.example" not in names[1:]
    assert f"Host: images.example:{port}".encode() in asked[0].split(b"\r\n")


@pytest.mark.skipif(not shutil.which("openssl"), reason="certificates are made by openssl")
@pytest.mark.parametrize("name", ["images.example", "other.example"])
def test_a_certificate_is_for_the_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for the address that it resolved to."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    made += ["-nodes", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    made += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr("kvasir.serve.fetch._tls", lambda: trusting)
    monkeypatch.setattr("kvasir.serve.fetch.is_public", lambda address: True)
    monkeypatch.setattr("kvasir.serve.fetch._look_up", lambda location: ["127.0.0.1"])
    with host(FULL, tls=tls) as (port, _):
        address, allowed = f"https://images.example:{port}/", f"images.example:{port}"
        if name == "images.example":
            assert base64.b64decode(fetched(address, allowed)[0].data) == FILE
        else:
            with pytest.raises(RequestError, match="cannot be reached"):
                fetched(address, allowed)


def test_public_addresses() -> None:
    assert all(map(is_public, ("93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c")))
    assert is_public("::ffff:93.184.215.14")


def test_the_parts_of_an_address() -> None:
    found = location_of(ImagePart("", "x", address="HTTPS://Images.Example/a?b"))
    assert (found.scheme, found.host, found.port, found.path) == (
        *("https", "images.example", 443, "/a?b"),
    )
    assert found.authority == "images.example"


def test_domains() -> None:
    found = media_domains("images.example, Other.example:8443 127.0.0.1 [::1]:80")
    assert found == {
        *(("images.example", 0), ("other.example", 8443), ("127.0.0.1", 0), ("::1", 80)),
    }
    assert media_domains(None) == frozenset()


@pytest.mark.parametrize("said", ["*", "http://x", "a/b", "u@h", "h:0", "h:99999", ":80"])
def test_domains_that_are_none(said: str) -> None:
    with pytest.raises(ConfigError, match="name a domain"):
        media_domains(said)


def test_a_file_that_made_room_for_others_is_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fetch._download

    async def lost(image: ImagePart, *more: Any) -> None:
        await real(image, *more)
        more[-1].lose()

    monkeypatch.setattr(fetch, "_download", lost)
    with host(FULL) as (port, _), pytest.raises(BodiesFull, match="others needed"):
        fetched(f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}")


def test_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.serve.fetch.MAX_WAITING", 0)
    with pytest.raises(KvasirError, match="wait") as caught:
        fetched("http://images.example/", "images.example")
    assert caught.value.status == 429
