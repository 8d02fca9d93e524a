"""A line for every request that was answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from kvasir.config.serving import ServeOptions
from kvasir.serve.exchange import Exchange
from kvasir.serve.logs import FIELDS

logger = logging.getLogger("kvasir.requests")

MAX_PATH = 256
NOTED_BYTES = 4096
"""Of a body, where bodies are logged."""
QUIET = frozenset(
    {"/live", "/startup", "/ready", "/health", "/v1/health", "/ping", "/metrics", "/load"}
)
"""Asked every few seconds, by machines."""


def observers(options: ServeOptions) -> tuple[Callable[[Exchange], None], ...]:
    """Those who log requests, if that is asked for."""
    by_default = options.log_format == "json" or options.log_prompts
    asked = options.enable_log_requests
    return (log_request,) if (by_default if asked is None else asked) else ()


def log_request(exchange: Exchange) -> None:
    """Who asked is not said, nor what, unless the exchange was told to note its body."""
    if exchange.scope["path"] in QUIET and "error" not in exchange.notes:
        return
    fields: dict[str, object] = {
        "method": exchange.scope["method"],
        "path": str(exchange.scope["path"])[:MAX_PATH],
        "status": exchange.status,
        "seconds": round(time.monotonic() - exchange.arrived, 6),
        **exchange.notes,
    }
    logger.info("request", extra={FIELDS: fields})
