"""The name of a request in logs, traces and its answer: its client's, or one of ours."""

from __future__ import annotations

import re
import secrets

HEADER = b"x-request-id"
MAX_LENGTH = 128
_OTHERS = re.compile(r"[^A-Za-z0-9._:/+=@-]")


def request_id(given: bytes | None) -> str:
    """``given`` with a sign for each character that a log could take for another, at most
    MAX_LENGTH of them; a new one without."""
    text = _OTHERS.sub("_", (given or b"")[:MAX_LENGTH].decode("latin-1"))
    return text or f"req-{secrets.token_hex(12)}"
