"""The page's files: public, as what is in them is no secret. All data come from other routes, for
which the page sends its user's key.

A policy of the strictest kind goes with each: nothing from elsewhere, nothing inline, no frame
around it, and no markup from text (Content Security Policy 3, Trusted Types).
"""

from __future__ import annotations

import asyncio

from starlette.routing import Match, Route
from starlette.types import Scope

from kvasir.core.errors import RequestError
from kvasir.serve.endpoint import Handler
from kvasir.serve.exchange import Exchange
from kvasir.serve.openapi import RouteSpec
from kvasir.serve.service import Service
from kvasir.validation.warn import MAX_NAME, escaped
from kvasir.web.files import WebFile, WebPage, read_page

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (b"vary", b"accept-encoding"),
)
FOR_EVER = (b"cache-control", b"public, max-age=31536000, immutable")
ASK_FIRST = (b"cache-control", b"no-cache")
HOME = b"ui/"
"""Relative, so that a proxy may put it anywhere."""


class BrowserRoute(Route):
    """Only for who wants HTML, as browsers do when somebody types an address."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        accepted = (value for name, value in scope.get("headers", ()) if name == b"accept")
        return (match, child) if any(b"text/html" in x for x in accepted) else (Match.NONE, {})


class PageRoutes:
    """Reads the files when they are asked for first: no start waits for them."""

    def __init__(self) -> None:
        self._page: WebPage | None = None

    def specs(self) -> tuple[RouteSpec, ...]:
        def get(path: str, handler: Handler) -> RouteSpec:
            return RouteSpec("GET", path, handler, "public")

        return (
            get("/ui", to_page),
            get("/ui/", self.get_index),
            get("/ui/{version}/{name:path}", self.get_file),
        )

    async def page(self) -> WebPage:
        if self._page is None:
            self._page = await asyncio.to_thread(read_page)
        return self._page

    async def get_index(self, service: Service, exchange: Exchange) -> None:
        """It names the version of all others; a browser asks each time whether it is the same."""
        page = await self.page()
        tag = f'"{page.version}"'.encode()
        headers = (*HEADERS, ASK_FIRST, (b"etag", tag))
        if tag in (exchange.header(b"if-none-match") or b""):
            return await exchange.send_unchanged(headers)
        await _send(exchange, page.home, headers)

    async def get_file(self, service: Service, exchange: Exchange) -> None:
        """A version's files never change. Raises RequestError (404), for another version's too: a
        page of an older server loads nothing of a newer one."""
        page = await self.page()
        asked = exchange.path_params
        found = page.files.get(asked["name"]) if asked["version"] == page.version else None
        if found is None:
            raise RequestError(
                f"the page has no file '{escaped(asked['name'][:MAX_NAME])}' in this version: "
                "load it again from /ui/",
                code="not_found",
                status=404,
            )
        await _send(exchange, found, (*HEADERS, FOR_EVER))


async def to_page(service: Service, exchange: Exchange) -> None:
    """Where the page is."""
    headers = (*HEADERS, ASK_FIRST, (b"location", HOME))
    await exchange.send_bytes(b"", b"text/plain", 307, headers)


async def _send(
    exchange: Exchange, file: WebFile, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    if b"gzip" in (exchange.header(b"accept-encoding") or b""):
        packed = (*headers, (b"content-encoding", b"gzip"))
        return await exchange.send_bytes(file.packed, file.media, 200, packed)
    await exchange.send_bytes(file.body, file.media, 200, headers)
