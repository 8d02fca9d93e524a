"""What both processes of a server log, to standard error: a line an entry."""

from __future__ import annotations

import logging
from types import TracebackType

from kvasir.core.controls import harmless, one_line

_Exception = tuple[type[BaseException], BaseException, TracebackType | None]


class LineFormatter(logging.Formatter):
    """Nothing in a message begins a line of its own or speaks to a terminal. A traceback has its
    lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    def formatException(self, ei: _Exception | tuple[None, None, None]) -> str:
        return harmless(super().formatException(ei))


def configure(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in ("uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
