"""What a connection may cost before any application code runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from kvasir.config.serving import ServeOptions

MAX_TARGET_BYTES = 8192
"""Longest request target (path and query)."""

MAX_FRAMING = 1024
"""Bytes of a chunked body that are not its contents, beside 1/16 of these: 200 chunks of any
size (half a millisecond), then 80 bytes in each."""
MAX_PIPELINED = 16
"""Requests behind one that is being answered; each is read and kept before its turn."""
RESERVE = 32
"""Connections beyond the limit, for health routes."""
HEALTH = (b"/health", b"/v1/health", b"/ping", b"/live", b"/startup", b"/ready")
UPLOAD = b"/v1/files"
FORM_BYTES = 64 * 1024
"""What a form has beside its file."""

_HOST = re.compile(rb"\A(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{2,64}\])(?::[0-9]{1,5})?\Z")
_SMUGGLED = re.compile(rb"%2e|%5c|%00|\\|//|/\.\.?(?:/|\Z)", re.IGNORECASE)

Header = tuple[bytes, bytes]


class HttpLimits(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds."""

    body_bytes: int
    upload_bytes: int
    """Of a body that goes to disk as it arrives."""
    head_bytes: int
    """Of the request line and headers."""
    n_headers: int
    header_timeout: float
    body_timeout: float
    """How long a body may fall behind ``body_rate`` (bytes a second)."""
    body_rate: float
    write_timeout: float

    def body_limit(self, target: bytes) -> int:
        """Bytes of a body that is sent to ``target``."""
        is_upload = target.partition(b"?")[0] == UPLOAD
        return self.upload_bytes if is_upload else self.body_bytes


class Refusal(msgspec.Struct, frozen=True):
    status: int
    message: str
    retry_after: int | None = None
    """Seconds."""


def is_health(target: bytes) -> bool:
    return target.partition(b"?")[0] in HEALTH


def check_target(target: bytes) -> Refusal | None:
    """Only a plain path that every reader understands alike: the routes compare it as it stands."""
    if len(target) > MAX_TARGET_BYTES:
        return Refusal(414, f"the request target exceeds {MAX_TARGET_BYTES} bytes")
    path = target.partition(b"?")[0]
    if not path.startswith(b"/"):
        return Refusal(400, "the request target must be a path")
    encoded_slash = b"%2f" in path.lower() and not path.startswith(b"/v1/models/")
    if encoded_slash or _SMUGGLED.search(path):
        return Refusal(400, "the path is not in its plain form")
    return None


def check_headers(headers: Sequence[Header], http_version: str) -> Refusal | None:
    """Host exactly once and well formed; the body's length said at most once."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and http_version != "1.0"):
        return Refusal(400, f"the request has {len(hosts)} Host headers, it needs one")
    if hosts and not _HOST.match(hosts[0]):
        return Refusal(400, "the Host header is malformed")
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        return Refusal(400, "the length of the body is stated more than once")
    if codings and codings[0].strip().lower() != b"chunked":
        return Refusal(400, "the only Transfer-Encoding is chunked")
    return None


def body_length(headers: Sequence[Header]) -> int | None:
    """Bytes, 0 without a body; None when only its end tells. The parser has checked the number."""
    if any(name == b"transfer-encoding" for name, _ in headers):
        return None
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def limits_of(options: ServeOptions) -> HttpLimits:
    return HttpLimits(
        body_bytes=options.max_body_bytes,
        upload_bytes=options.max_file_bytes + FORM_BYTES,
        head_bytes=options.max_header_bytes,
        n_headers=options.max_headers,
        header_timeout=options.header_timeout,
        body_timeout=options.body_timeout,
        body_rate=options.body_rate,
        write_timeout=options.write_timeout,
    )
