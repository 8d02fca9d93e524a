"""Images that a request names by their addresses: fetched from domains that the operator allows,
and from nowhere else.

A name is resolved once, and the connection goes to what it resolved to: another answer a moment
later leads nowhere. Redirects are not followed, proxies of the environment not used.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from msgspec.structs import replace

from kvasir import __version__
from kvasir.config.serving import MediaDomains
from kvasir.core.errors import CapacityError, RequestError
from kvasir.serve.bodies import SMALL_BYTES, Body
from kvasir.serve.fairlock import FairLock
from kvasir.tokenizer.messages import ChatMessage, ImagePart

logger = logging.getLogger("kvasir.images")

SECONDS = 10.0
"""For all images of a request."""
MAX_FETCHED = 8
"""Requests that fetch at a time."""
MAX_WAITING = 64
"""Of one owner."""
MAX_ADDRESSES = 3
"""Of one name, that are tried."""
PORTS = {"http": 80, "https": 443}
_NAT64 = IPv6Network("64:ff9b::/96")
_NOBODYS = IPv6Network("fec0::/10"), IPv6Network("3fff::/20")
"""Of sites, and of documentation: some versions of Python take them for public."""
_IMAGE = re.compile(
    rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|RIFF.{4}WEBP"
    rb"|BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0",
    re.DOTALL,
)
"""How files of images begin: PNG, JPEG, GIF, WebP, BMP."""
CODE = "invalid_image_url"
"""Of what could not be fetched, as OpenAI calls it."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a file lies."""

    scheme: str
    host: str
    port: int
    path: str
    """With the query."""

    @property
    def has_own_port(self) -> bool:
        """Whether the port is that of the scheme."""
        return self.port == PORTS[self.scheme]

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.has_own_port else f"{host}:{self.port}"


class ImageFetcher:
    """Lives in one event loop."""

    def __init__(self, domains: MediaDomains = frozenset(), *, seconds: float = SECONDS) -> None:
        self._domains = domains
        self._seconds = seconds
        self._turns = FairLock(MAX_FETCHED)
        self._names = ThreadPoolExecutor(MAX_FETCHED, "kvasir-names")
        """A name may take minutes: threads that others need are not kept waiting by it."""
        self._context: ssl.SSLContext | None = None

    async def fetched(
        self, messages: Sequence[ChatMessage], body: Body, owner: str
    ) -> tuple[ChatMessage, ...]:
        """``messages`` with the images themselves in place of their addresses; their bytes are
        taken of ``body``. Raises RequestError (400), CapacityError (429), BodiesFull (503)."""
        asked = [x for message in messages for x in message.images if x.address]
        if not asked:
            return tuple(messages)
        locations = {image: self._location_of(image) for image in asked}
        check_library()
        if self._turns.n_waiting(owner) >= MAX_WAITING:
            raise CapacityError(f"{MAX_WAITING} requests with images wait: try again later")
        async with self._turns.taken(owner):
            found = await self._in_time(locations, body)
        return tuple(_with_images(message, found) for message in messages)

    def close(self) -> None:
        """Waits for nobody."""
        self._names.shutdown(wait=False, cancel_futures=True)

    def _location_of(self, image: ImagePart) -> Location:
        """Raises RequestError (400) for one that is not allowed."""
        if not self._domains:
            raise RequestError(
                f"{image.where} must be a data URI (data:image/png;base64,...): this server "
                "fetches no images, --allowed-media-domains names none",
                param=image.where,
                code="unsupported_parameter",
            )
        location = location_of(image)
        ports = {location.port, 0} if location.has_own_port else {location.port}
        if not any((location.host, port) in self._domains for port in ports):
            raise RequestError(
                f"{image.where} names a domain that this server fetches no images from: send a "
                "data URI, or name it by --allowed-media-domains",
                param=image.where,
                code="unsupported_parameter",
            )
        return location

    async def _in_time(
        self, locations: dict[ImagePart, Location], body: Body
    ) -> dict[ImagePart, ImagePart]:
        try:
            async with asyncio.timeout(self._seconds):
                return {x: await self._read(x, where, body) for x, where in locations.items()}
        except TimeoutError:
            raise RequestError(
                f"the images of a request may take {self._seconds:g} s to be fetched: send them as "
                "data URIs",
                param=next(iter(locations)).where,
                code=CODE,
            ) from None

    async def _read(self, image: ImagePart, location: Location, body: Body) -> ImagePart:
        addresses = await self._resolved(image, location)
        if self._context is None:
            self._context = await asyncio.to_thread(_tls)
        await _download(image, location, addresses, self._context, body)
        parts = body.complete()
        size = sum(map(len, parts))
        if size > SMALL_BYTES:
            return await asyncio.to_thread(_encoded, image, parts)
        return _encoded(image, parts)

    async def _resolved(self, image: ImagePart, location: Location) -> list[str]:
        """Addresses of the host, all of which anybody may reach; those of IPv4 first."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._names, _look_up, location)
        except (OSError, UnicodeError):
            raise _unfetched(image, "its host has no address") from None
        if not found:
            raise _unfetched(image, "its host has no address")
        if not names_itself(location.host) and not all(map(is_public, found)):
            logger.warning(
                "%s has an address that is not public, and nothing is fetched from there: name the "
                "address itself by --allowed-media-domains to allow it",
                location.host,
            )
            raise _unfetched(image, "its host has no public address")
        return sorted(found, key=lambda address: ":" in address)


def location_of(image: ImagePart) -> Location:
    """Raises RequestError (400) for an address that is none."""
    try:
        parts = urlsplit(image.address)
        scheme, port = parts.scheme.lower(), parts.port
        host = (parts.hostname or "").lower()
    except ValueError:
        raise _unfetched(image, "it is no address") from None
    if scheme not in PORTS or not host or "@" in parts.netloc or port == 0:
        raise _unfetched(image, "it is no address of a host without a user")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Location(scheme, host, port or PORTS[scheme], path)


def names_itself(host: str) -> bool:
    """Whether a domain that was allowed is an address: then it is allowed as such."""
    try:
        ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def is_public(address: str) -> bool:
    """Whether it is nobody's own network, machine or link, nor stands for one of these."""
    return all(
        one.is_global
        and not one.is_multicast
        and not one.is_reserved
        and not any(one in network for network in _NOBODYS)
        for one in _meant(ip_address(address))
    )


def _meant(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """With the IPv4 address that one of IPv6 stands for."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    more = [address.sixtofour, *(address.teredo or ())]
    return [address, *(one for one in more if one is not None)]


def check_library() -> None:
    """Raises RequestError (501) where the extra is not installed."""
    try:
        import httpx2  # noqa: F401
    except ImportError:
        raise RequestError(
            "this server was installed without what fetches images: pip install "
            "'kvasir-llm[vision]'",
            param="messages",
            code="extra_missing",
            status=501,
        ) from None


def _look_up(location: Location) -> list[str]:
    """Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(location.host, location.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _tls() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


async def _download(
    image: ImagePart,
    location: Location,
    addresses: Sequence[str],
    context: ssl.SSLContext,
    body: Body,
) -> None:
    """Adds the file to ``body``, from the first of ``addresses`` that can be reached."""
    import httpx2

    async with httpx2.AsyncClient(verify=context, trust_env=False, timeout=None) as client:
        for address in addresses[:MAX_ADDRESSES]:
            try:
                async with client.stream(
                    "GET",
                    _url(location, address),
                    headers=_headers(location),
                    extensions={"sni_hostname": location.host},
                ) as answer:
                    _check(image, answer.status_code, answer.headers.get("content-encoding"))
                    async for part in answer.aiter_raw():
                        _add(image, part, body)
                    return
            except httpx2.ConnectError:
                continue
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                logger.warning("%s: %s", location.host, error)
                raise _unfetched(image, "its host did not send it whole") from None
    raise _unfetched(image, "its host cannot be reached")


def _url(location: Location, address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{location.scheme}://{host}:{location.port}{location.path}"


def _headers(location: Location) -> dict[str, str]:
    return {
        "Host": location.authority,
        "Accept": "image/*",
        "Accept-Encoding": "identity",
        "User-Agent": f"kvasir/{__version__}",
    }


def _check(image: ImagePart, status: int, encoding: str | None) -> None:
    if 300 <= status < 400:
        raise _unfetched(image, "its host sends elsewhere, and redirects are not followed")
    if status != 200:
        raise _unfetched(image, f"its host answered with status {status}")
    if encoding not in (None, "", "identity"):
        raise _unfetched(image, "its host compresses it, though nobody asked for that")


def _add(image: ImagePart, part: bytes, body: Body) -> None:
    """Raises RequestError (400), BodiesFull (503)."""
    try:
        body.add(part)
    except RequestError:  # of a body, which this is none of
        raise _unfetched(
            image, f"the images of a request may have {body.limit} bytes: see --max-body-bytes"
        ) from None


def _encoded(image: ImagePart, parts: Sequence[bytes]) -> ImagePart:
    """Raises RequestError (400) for another file than one of an image, which nobody is to read."""
    data = b"".join(parts)
    if _IMAGE.match(data) is None:
        raise _unfetched(image, "it is no file of PNG, JPEG, WebP, GIF or BMP")
    return ImagePart(base64.b64encode(data).decode(), image.where)


def _with_images(message: ChatMessage, found: dict[ImagePart, ImagePart]) -> ChatMessage:
    if not any(image in found for image in message.images):
        return message
    parts = tuple(x if isinstance(x, str) else found.get(x, x) for x in message.parts)
    return replace(message, parts=parts)


def _unfetched(image: ImagePart, why: str) -> RequestError:
    said = f"{image.where} could not be fetched: {why}"
    return RequestError(said, param=image.where, code=CODE)
