"""A line an entry, whatever is said: R106."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from kvasir.serve.logs import FIELDS, JsonFormatter, LineFormatter, current_request
from kvasir.serve.request_ids import request_id

EVIL = "a\r\nINFO forged\x1b[2J\u202ex\u2028y\x9b"


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("kvasir.x", logging.INFO, "f", 1, message, (), None)
    setattr(made, FIELDS, fields)
    return made


def test_r106_nothing_begins_a_line_or_moves_a_cursor() -> None:
    text = LineFormatter("%(levelname)s %(message)s").format(record(EVIL, model=EVIL, n=1))
    assert "\n" not in text and "\r" not in text and "\x1b" not in text and "\u202e" not in text
    line = JsonFormatter().format(record(EVIL, model=EVIL, tags=[EVIL], deep={EVIL: EVIL}))
    entry = json.loads(line)
    assert entry["message"] == entry["tags"][0] == entry["deep"][entry["message"]]
    for forbidden in "\r\n\x1b\u202e\u2028\x9b":
        assert forbidden not in line and forbidden not in entry["message"]
        assert forbidden not in entry["deep"][entry["message"]]


def test_a_json_line_says_what_machines_ask_for() -> None:
    token = current_request.set("req-1")
    try:
        entry = json.loads(JsonFormatter().format(record("request", status=200, seconds=0.5)))
        text = LineFormatter("%(message)s").format(record("request", status=200, why="so it is"))
    finally:
        current_request.reset(token)
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "info",
        "logger": "kvasir.x",
        "message": "request",
        "request_id": "req-1",
        "status": 200,
        "seconds": 0.5,
    }
    assert text == 'request request_id=req-1 status=200 why="so it is"'


def test_a_traceback_is_one_field() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        made = logging.LogRecord("k", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    line = JsonFormatter().format(made)
    entry = json.loads(line)
    assert "\n" not in line and entry["exception"].startswith("Traceback")
    assert "\x1b" not in entry["exception"]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (b"abc-1.2_3:4", "abc-1.2_3:4"),
        (b"a b\x1b[1m\xff", "a_b__1m_"),
        (b"x" * 500, "x" * 128),
    ],
)
def test_a_request_id_is_bounded_and_plain(given: bytes, taken: str) -> None:
    assert request_id(given) == taken


def test_a_request_without_an_id_gets_one() -> None:
    assert request_id(None) != request_id(b"")
    assert request_id(None).startswith("req-") and len(request_id(None)) == 28
