"""Which web pages may speak to the server: its own, and those of the origins that it allows.

A page of any site can make the browsers of this machine send requests to it, and, once its name is
made to lead here (DNS rebinding), read the answers as well. Such a request carries a foreign name
in Host, or says where it comes from in Sec-Fetch-Site or Origin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ipaddress import ip_address

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from kvasir.config.serving import ServeOptions
from kvasir.core.errors import RequestError
from kvasir.serve.exchange import Exchange
from kvasir.serve.listen import is_loopback
from kvasir.validation.warn import escaped

Guard = Callable[[Exchange], None]
ANY = "*"
METHODS = ("GET", "POST", "DELETE")
READABLE = (
    "retry-after",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-request-id",
)
"""Headers of answers that pages of allowed origins may read."""
PREFLIGHT_SECONDS = 600


def guards(options: ServeOptions) -> tuple[Guard, ...]:
    """Of what clients may ask. On an address that others reach the server cannot know its own
    names: there only those of the option count."""
    names = _listed(options.allowed_hosts)
    site = partial(check_site, origins=_listed(options.allowed_origins))
    is_private = options.uds is None and is_loopback(options.host)
    if ANY in names or not (names or is_private):
        return (site,)
    return (partial(check_host, names=names | {options.host.lower()}), site)


def admin_guards(options: ServeOptions) -> tuple[Guard, ...]:
    """Of what the operator may ask: no page of another site ever speaks for him."""
    names = _listed(options.allowed_hosts) | {options.admin_host.lower()}
    return (partial(check_host, names=names), partial(check_site, origins=frozenset()))


def with_cors(app: ASGIApp, options: ServeOptions) -> ASGIApp:
    """``app`` for browsers: pages of allowed origins may read its answers (Fetch standard, CORS
    protocol). Keys are headers that a page sends itself, so browsers need send no credentials."""
    origins = _listed(options.allowed_origins)
    return Cors(app, origins) if origins else app


class Cors(CORSMiddleware):
    """Requests of all other origins are the app's, which refuses them."""

    def __init__(self, app: ASGIApp, origins: frozenset[str]) -> None:
        super().__init__(
            app,
            allow_origins=sorted(origins),
            allow_methods=METHODS,
            allow_headers=("*",),
            expose_headers=READABLE,
            max_age=PREFLIGHT_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for key, value in scope["headers"] if key == b"origin"), None)
        if given is None or not self.is_allowed_origin(given.decode("latin-1")):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _listed(option: str | None) -> frozenset[str]:
    return frozenset(x.strip().lower() for x in (option or "").split(",") if x.strip())


def check_host(exchange: Exchange, names: frozenset[str]) -> None:
    """Host must be an address, localhost or one of ``names``. Raises RequestError (403)."""
    host = exchange.header(b"host")
    name = _host_name(host or b"localhost")  # browsers always send one
    if ANY not in names and not (
        _is_address(name) or name in names or name.split(".")[-1] == "localhost"
    ):
        raise RequestError(
            f"requests to the host '{escaped(name)}' are not taken: name it in --allowed-hosts",
            code="foreign_host",
            status=403,
        )


def check_site(exchange: Exchange, origins: frozenset[str]) -> None:
    """A browser says that its user, a page of this server or one of ``origins`` asks. Raises
    RequestError (403)."""
    site, origin = exchange.header(b"sec-fetch-site"), exchange.header(b"origin")
    host = exchange.header(b"host") or b""
    if site is not None:
        is_own = site in (b"same-origin", b"none")
    else:
        is_own = origin is None or origin.partition(b"://")[2] == host
    is_allowed = ANY in origins or (origin or b"").decode("latin-1") in origins
    if not (is_own or is_allowed):
        raise RequestError(
            "the request comes from another site's page: allow its origin with --allowed-origins, "
            "or send it yourself",
            code="foreign_origin",
            status=403,
        )


def _host_name(host: bytes) -> str:
    """Lower case, without port and brackets. The protocol has checked its form."""
    text = host.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
