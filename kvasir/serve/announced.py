"""What a server that is ready says of itself in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kvasir.config.serving import ServeOptions
from kvasir.core.messages import Ready
from kvasir.serve.listen import Listeners, address, is_loopback

logger = logging.getLogger("kvasir.server")


def announce(
    info: Ready,
    options: ServeOptions,
    listeners: Listeners,
    names: Sequence[str],
    *,
    is_open: bool,
) -> None:
    """Why its options are what they are, and where it is reached. ``is_open``: without a key."""
    for name, reason in info.reasons.items():
        logger.info("%s: %s", name, reason)
    for warning in info.warnings:
        logger.warning("%s", warning)
    if not is_loopback(options.host) and is_open:
        logger.warning("anyone who reaches %s may use it: set --api-key", options.host)
    for listener in listeners.admins.values():
        if listener is not None:
            logger.info("admin routes at %s", address(listener))
    place = address(listeners.clients)
    logger.info("serving %s at %s/v1", ", ".join(names), place)
    if options.web and options.uds is None:
        logger.info("a page for browsers at %s/ui", place)
