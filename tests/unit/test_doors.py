"""What comes in and what goes out is bounded and plain: bodies, connections, warnings, queries,
hosts, control characters."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
from starlette.types import Message

from kvasir.config.controls import harmless, one_line
from kvasir.config.serving import ServeOptions
from kvasir.core.errors import RequestError
from kvasir.serve import query
from kvasir.serve.bodies import BodyBudget
from kvasir.serve.connections import IDLE_SECONDS, Connections, Patience, Place
from kvasir.serve.exchange import Exchange
from kvasir.serve.http_limits import RESERVE
from kvasir.serve.logs import LineFormatter
from kvasir.serve.origins import Guard, admin_guards, guards
from kvasir.serve.protocol.completions import UNSUPPORTED, CompletionRequest
from kvasir.serve.protocol.parse import parse_request
from kvasir.tokenizer.messages import read_messages

MIB = 2**20


async def _receive() -> Message:
    raise AssertionError("nothing is read")


async def _send(message: Message) -> None:
    raise AssertionError(f"{message} is sent")


def exchange(query_string: str = "", **headers: str) -> Exchange:
    scope = {
        "type": "http",
        "query_string": query_string.encode(),
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
    }
    return Exchange(scope, _receive, _send, BodyBudget(MIB, MIB, 10))


# Connections


def test_who_loses_least_makes_room() -> None:
    closed: list[str] = []
    table = Connections(3)
    places = {}
    for name in ("idle", "lingering", "silent", "working"):
        places[name] = Place(lambda name=name: closed.append(name))  # type: ignore[misc]
    for name in ("idle", "lingering", "silent"):
        table.enter(places[name])
    table.wait(places["idle"], Patience.IDLE)
    table.wait(places["lingering"], Patience.LINGERING)
    for _ in range(3):
        newcomer = Place(lambda: closed.append("newcomer"))
        table.enter(newcomer)
        table.work(newcomer)
    assert closed == ["lingering", "silent", "idle"]


def test_with_all_at_work_newcomers_stand_in_the_reserve() -> None:
    closed: list[int] = []
    table = Connections(2)
    workers = [Place(lambda: closed.append(-1)) for _ in range(2)]
    for worker in workers:
        table.enter(worker)
        table.work(worker)
    for number in range(RESERVE + 2):
        place = Place(lambda number=number: closed.append(number))  # type: ignore[misc]
        table.enter(place)
        table.wait(place, Patience.IDLE)
        assert place.is_reserve
    assert closed == [0, 1]
    table.leave(workers[0])
    table.enter(free := Place(lambda: None))
    assert not free.is_reserve


def test_who_asks_for_nothing_is_closed_after_a_while() -> None:
    closed: list[str] = []
    now = 100.0
    table = Connections(4, lambda: now)
    places = {}
    for name in ("idle", "silent", "working", "asking"):
        places[name] = Place(lambda name=name: closed.append(name))  # type: ignore[misc]
        table.enter(places[name])
    table.work(places["working"])
    table.wait(places["idle"], Patience.IDLE)
    now += IDLE_SECONDS / 2
    table.work(places["asking"])
    table.wait(places["asking"], Patience.IDLE)
    table.close_idle()
    assert not closed
    now += IDLE_SECONDS / 2
    table.close_idle()
    assert (sorted(closed), len(table)) == (["idle", "silent"], 2)
    now += IDLE_SECONDS
    table.close_idle()
    assert (closed[2:], len(table)) == (["asking"], 1)


# Warnings and queries


def test_warnings_say_how_many_were_left_out() -> None:
    body = {"prompt": "x", **{f"{i:03} \x1b {'é' * 1000}": 1 for i in range(500)}}
    _, warnings = parse_request(CompletionRequest, body, UNSUPPORTED, strict=False)
    assert warnings[0] == "unknown field '000 \\x1b " + "é" * 58 + "…' was ignored"
    assert len(warnings) == 17
    assert warnings[-1] == "484 more warnings were left out"
    assert sum(len(x.encode()) for x in warnings) < 16_384
    message = {"role": "user", "content": "x", **{f"{i:03}\n": 1 for i in range(17)}}
    _, warnings = read_messages([message])
    assert warnings[0] == "messages[].000\\n was ignored"
    assert warnings[-1] == "1 more warnings were left out"


@pytest.mark.parametrize(
    "text",
    ["9" * 27, "9" * 5000, "000000001" + "9" * 18, "0000000014097", "4097", "0", "-1", "", "+1",
     "1.0", "1e3", "²", "١", "0x10", "1_0", " 1", "1&steps=2", "1&other=2", "%31%30%30%30%30"],
)  # fmt: skip
def test_a_count_is_within_its_bounds(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        query.read_count(exchange(f"steps={text}"), "steps", 256, 4096)
    param = "other" if "other" in text else "steps"
    assert (caught.value.status, caught.value.param) == (400, param)
    assert len(caught.value.message) < 200


def test_a_count_is_read() -> None:
    assert query.read_count(exchange(), "steps", 256, 4096) == 256
    assert query.read_count(exchange("steps=4096"), "steps", 256, 4096) == 4096


# Hosts and sites


def is_taken(found: tuple[Guard, ...], **headers: str) -> bool:
    try:
        for guard in found:
            guard(exchange(**headers))
    except RequestError as error:
        assert error.status == 403
        return False
    return True


@pytest.mark.parametrize(
    ("options", "host", "taken"),
    [
        ({}, "localhost:8000", True),
        ({}, "127.0.0.1:8000", True),
        ({}, "[::1]:8000", True),
        ({}, "LOCALHOST", True),
        ({}, "192.168.1.5", True),
        ({}, "evil.example:8000", False),
        ({}, "127.0.0.1.nip.io", False),
        ({}, "localhost.evil.example", False),
        ({"allowed_hosts": "a.example, B.example"}, "b.example", True),
        ({"allowed_hosts": "a.example"}, "evil.example", False),
        ({"allowed_hosts": "*"}, "evil.example", True),
        ({"host": "0.0.0.0"}, "vllm.cluster", True),
        ({"host": "0.0.0.0", "allowed_hosts": "vllm"}, "vllm.cluster", False),
        ({"api_key": "secret"}, "llm.example", False),
        ({"host": "0.0.0.0", "api_key": "secret"}, "llm.example", True),
        ({"host": "127.0.0.2"}, "evil.example", False),
        ({"host": "Localhost"}, "evil.example", False),
        ({"uds": "/tmp/x"}, "anything", True),
    ],
)
def test_names_that_were_made_to_lead_here(options: dict[str, Any], host: str, taken: bool) -> None:
    assert is_taken(guards(ServeOptions(**options)), host=host) == taken


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"sec_fetch_site": "same-origin", "origin": "http://localhost:9"}, True),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"origin": "http://localhost:9"}, True),
        ({"origin": "http://localhost:10"}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"host": "evil.example", "origin": "http://evil.example"}, False),
    ],
)
def test_the_operator_asks_from_no_foreign_page(headers: dict[str, str], taken: bool) -> None:
    asked = {"host": "localhost:9", **headers}
    assert is_taken(admin_guards(ServeOptions(admin_port=0)), **asked) == taken
    assert is_taken(admin_guards(ServeOptions(admin_port=0, admin_key="key")), **asked) == taken
    assert is_taken(guards(ServeOptions()), **asked) == taken


# Control characters


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x1b[2J", "␛[2J"),
        ("\x9b2J", "<U+009B>2J"),
        ("ok\rno", "ok␍no"),
        ("a\x7f\x08b", "a␡␈b"),
        ("\u202egnp.exe", "<U+202E>gnp.exe"),
        ("\ud83d", "<U+D83D>"),
        ("a\tb\n\u00e9 \U0001f468\u200d\U0001f469", "a\tb\n\u00e9 \U0001f468\u200d\U0001f469"),
    ],
)  # fmt: skip
def test_control_characters_are_shown(text: str, shown: str) -> None:
    assert harmless(text) == shown
    assert "".join(harmless(piece) for piece in text) == shown


def test_nothing_logged_begins_a_line_of_its_own() -> None:
    screen = io.StringIO()
    handler = logging.StreamHandler(screen)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.error("name %s", "a\r\nERROR forged \x1b[2J")
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        logger.exception("failed")
    lines = screen.getvalue().splitlines()
    assert lines[0] == "ERROR name a␍␊ERROR forged ␛[2J"
    assert lines[1] == "ERROR failed" and lines[-1] == "ValueError: ␛[2J"
    assert one_line("a\tb") == "a\tb"
