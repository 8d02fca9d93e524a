"""Ranges of a file over HTTP: RFC 9110, section 14."""

from __future__ import annotations

import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec

from kvasir.core.errors import ModelError

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
"""Others are none: of more digits int() makes none, and it takes those of other scripts."""
RETRIED = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that may go away."""


class Interrupted(Exception):
    """A transfer that may go on: cut, stalled, or a server that is busy. ``after``: seconds that it
    asks for."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


class WholeOnly(Exception):
    """The server sends the whole file, whatever range is asked for."""


class RangeSource(msgspec.Struct, frozen=True):
    """A file at an address. ``headers`` go to its own host and to no other."""

    url: str
    headers: Mapping[str, str]
    n_bytes: int

    @contextmanager
    def open(self, start: int, end: int, patience: float) -> Iterator[http.client.HTTPResponse]:
        """Bytes ``start`` to ``end`` of it; a read may wait for ``patience`` seconds. Raises
        Interrupted, WholeOnly, and ModelError for what stays as it is."""
        request = urllib.request.Request(self.url, headers={**self.headers, "User-Agent": "kvasir"})
        request.add_header("Range", f"bytes={start}-{end - 1}")
        request.add_header("Accept-Encoding", "identity")
        try:
            with _opener().open(request, timeout=patience) as response:
                self._check(response, start, end)
                yield response
        except urllib.error.HTTPError as error:
            with error:
                raise self._failed(error) from None
        except urllib.error.URLError as error:
            raise Interrupted(str(error.reason)) from None
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise Interrupted(str(error) or type(error).__name__) from None

    def _check(self, response: http.client.HTTPResponse, start: int, end: int) -> None:
        if response.status == http.client.OK:
            length = response.headers.get("Content-Length", "")
            if _NUMBER.fullmatch(length) and int(length) != self.n_bytes:
                raise self.changed(f"has {length} bytes")
            if start > 0 or end < self.n_bytes:
                raise WholeOnly
            return
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None:
            raise Interrupted("the server did not say which range it sends")
        if int(found[3]) != self.n_bytes:
            raise self.changed(f"has {found[3]} bytes")
        if int(found[1]) != start:
            raise Interrupted(f"asked for byte {start}, got byte {found[1]}")

    def changed(self, how: str) -> ModelError:
        return ModelError(
            f"{self.url} {how}, {self.n_bytes} were announced: it has changed or is cut by a "
            "proxy; pull it again",
            code="download_failed",
        )

    def _failed(self, error: urllib.error.HTTPError) -> Exception:
        if error.code in RETRIED:
            after = error.headers.get("Retry-After", "")
            seconds = float(after) if _NUMBER.fullmatch(after) else 0.0
            return Interrupted(f"status {error.code}", min(60.0, seconds))
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return self.changed("has fewer bytes")
        if 300 <= error.code < 400:
            return ModelError(
                f"{self.url} answered {error.code}: a redirect to another kind of address, or too "
                "many of them: check HF_ENDPOINT",
                code="download_failed",
            )
        why = {
            401: "wants a token: set HF_TOKEN, or run hf auth login",
            403: "is refused to this token: agree to the model's licence on its page, or set "
            "another HF_TOKEN",
            404: "is gone: pull it again, the repository has changed",
        }.get(error.code, "is not sent")
        return ModelError(
            f"{self.url} answered {error.code}: the file {why}", code="download_failed"
        )


class OwnHeaders(urllib.request.HTTPRedirectHandler):
    """A redirect to another host loses what says who asks; one to another kind of address, or from
    https to http, is not followed."""

    def redirect_request(
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        kinds = ("https",) if before.scheme == "https" else ("https", "http")
        if after.scheme not in kinds:
            raise urllib.error.HTTPError(req.full_url, code, msg, headers, fp)
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and (before.scheme, before.netloc) != (after.scheme, after.netloc):
            made.remove_header("Authorization")
            made.remove_header("Cookie")
        return made


def _opener() -> urllib.request.OpenerDirector:
    """With the environment's proxies, and for http and https alone."""
    made = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        OwnHeaders(),
        urllib.request.HTTPErrorProcessor(),
    ):
        made.add_handler(handler)
    return made
