"""What both processes of a server log, to standard error: a line an entry, as text or as JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType

from kvasir.config.controls import harmless, one_line

_Exception = tuple[type[BaseException], BaseException, TracebackType | None]

current_request: ContextVar[str] = ContextVar("current_request", default="")
"""The id of the request that the running task is for."""
LEVEL, FORMAT = "KVASIR_LOG_LEVEL", "KVASIR_LOG_FORMAT"
FIELDS = "fields"
"""Attribute of a record: a mapping of what else its line says, for machines."""


class LineFormatter(logging.Formatter):
    """Nothing in a message begins a line of its own or speaks to a terminal. A traceback has its
    lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        said = super().formatMessage(record)
        pairs = [f" {key}={_word(value)}" for key, value in _fields(record).items()]
        return one_line(said + "".join(pairs))

    def formatException(self, ei: _Exception | tuple[None, None, None]) -> str:
        return harmless(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """An object a line: ``time`` (UTC), ``level``, ``logger``, ``message``, ``request_id`` where
    one is served, ``exception``, and the record's own fields. Texts hold no control characters,
    also after they are parsed; only ``exception`` has lines."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, object] = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        cleaned = {name: _clean(value) for name, value in entry.items()}
        if record.exc_info:
            cleaned["exception"] = harmless(self.formatException(record.exc_info))
        return json.dumps(cleaned, ensure_ascii=False)


def configure(level: str, format: str = "text") -> None:
    """``format``: "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    text = LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if format == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in ("uvicorn.error", "uvicorn.access", "asyncio", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)


def for_children(level: str, format: str) -> dict[str, str]:
    """Variables with which ``configure_child`` logs as this process does."""
    return {LEVEL: level, FORMAT: format}


def configure_child() -> None:
    configure(os.environ.get(LEVEL, "info"), os.environ.get(FORMAT, "text"))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    given: Mapping[str, object] = getattr(record, FIELDS, {})
    request_id = current_request.get()
    return {**({"request_id": request_id} if request_id else {}), **given}


def _word(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text else text


def _clean(value: object) -> object:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(str(key)): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value
