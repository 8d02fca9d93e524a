"""What a client says of its request and is told again."""

from __future__ import annotations

from collections.abc import Mapping

from kvasir.core.errors import RequestError

MAX_METADATA = 16
MAX_KEY, MAX_VALUE = 64, 512
"""Characters of metadata."""
MAX_REQUEST_ID = 128
MAX_PING = 3600


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises RequestError (400)."""
    if len(metadata) > MAX_METADATA:
        raise RequestError(
            f"metadata has {len(metadata)} entries, at most {MAX_METADATA} are allowed",
            param="metadata",
        )
    for key, value in metadata.items():
        if len(key) > MAX_KEY or len(value) > MAX_VALUE:
            raise RequestError(
                f"metadata may have keys of {MAX_KEY} characters and values of {MAX_VALUE}",
                param="metadata",
            )


def check_request_id(request_id: str) -> None:
    """Raises RequestError (400)."""
    if not (0 < len(request_id) <= MAX_REQUEST_ID and request_id.isascii()) or not (
        request_id.isprintable()
    ):
        raise RequestError(
            f"request_id must be 1 to {MAX_REQUEST_ID} printable characters of ASCII",
            param="request_id",
        )


def ping_of(seconds: int | None) -> int:
    """Of silence, after which a stream says that it lives; 0: as the server has it, -1: it never
    does. Raises RequestError (400)."""
    if seconds is None or seconds == -1 or 1 <= seconds <= MAX_PING:
        return seconds or 0
    raise RequestError(
        f"sse_ping_interval must be 1 to {MAX_PING} seconds, or -1 for none",
        param="sse_ping_interval",
    )
