"""Which web pages may speak to the server: none but its own, where no key protects it.

A page of any site can make the browsers of this machine send requests to it, and, once its name is
made to lead here (DNS rebinding), read the answers as well. Such a request carries a foreign name
in Host, or says where it comes from in Sec-Fetch-Site or Origin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ipaddress import ip_address

from kvasir.config.serving import ServeOptions
from kvasir.core.errors import RequestError
from kvasir.core.warn import escaped
from kvasir.serve.exchange import Exchange
from kvasir.serve.listen import LOOPBACK

Guard = Callable[[Exchange], None]


def guards(options: ServeOptions) -> tuple[Guard, ...]:
    """Of what clients may ask. Pages of other sites cannot post JSON unless the server allows it to
    them, which it never does: only names that were made to lead here are left."""
    names = _names(options.allowed_hosts)
    is_private = options.uds is None and options.host in LOOPBACK and options.api_key is None
    if "*" in names or not (names or is_private):
        return ()
    return (partial(check_host, names=names | {options.host.lower()}),)


def admin_guards(options: ServeOptions) -> tuple[Guard, ...]:
    """Of what the operator may ask: a request without a body needs no permission to be sent."""
    if options.admin_key is not None:
        return ()
    names = _names(options.allowed_hosts) | {options.admin_host.lower()}
    return (partial(check_host, names=names), check_site)


def _names(option: str | None) -> frozenset[str]:
    return frozenset(x.strip().lower() for x in (option or "").split(",") if x.strip())


def check_host(exchange: Exchange, names: frozenset[str]) -> None:
    """Host must be an address, localhost or one of ``names``. Raises RequestError (403)."""
    host = exchange.header(b"host")
    name = _host_name(host or b"localhost")  # browsers always send one
    if not (_is_address(name) or name in names or name.split(".")[-1] == "localhost"):
        raise RequestError(
            f"requests to the host '{escaped(name)}' are not taken: name it in --allowed-hosts",
            code="foreign_host",
            status=403,
        )


def check_site(exchange: Exchange) -> None:
    """A browser says that its user or a page of this server asks. Raises RequestError (403)."""
    site, origin = exchange.header(b"sec-fetch-site"), exchange.header(b"origin")
    host = exchange.header(b"host") or b""
    if site is not None:
        is_own = site in (b"same-origin", b"none")
    else:
        is_own = origin is None or origin.partition(b"://")[2] == host
    if not is_own:
        raise RequestError(
            "the request comes from another site's page: send it yourself",
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
