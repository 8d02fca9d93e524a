"""What comes in and what goes out is bounded and plain: bodies, connections, warnings, queries,
hosts, control characters."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from kvasir.config.serving import ServeOptions, check_body_memory
from kvasir.core.controls import harmless, one_line
from kvasir.core.errors import ConfigError, RequestError
from kvasir.core.warn import MAX_WARNINGS, bounded
from kvasir.serve import jsonbody, query
from kvasir.serve.bodies import SMALL_BYTES, BodiesFull, BodyBudget
from kvasir.serve.connections import Connections, Patience, Place
from kvasir.serve.exchange import Exchange
from kvasir.serve.http_limits import RESERVE
from kvasir.serve.jsonbody import parse_object
from kvasir.serve.jsonshape import BLOCK_BYTES, Shape, json_shape
from kvasir.serve.logs import LineFormatter
from kvasir.serve.origins import Guard, admin_guards, guards
from kvasir.serve.protocol.completions import UNSUPPORTED, CompletionRequest
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.protocol.sampling import SamplingFields, to_params
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


# Bodies


def test_a_shape_counts_what_is_outside_texts() -> None:
    body = rb'{"a,[": [1, 2, "x\",{:", "\\"], "b": {"\\\"}": []}}'
    assert json_shape(body) == Shape(n_containers=4, n_values=8, n_keys=3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(['"', "\\", ",", "[", "{", ":", "a", "\n", "é"]), max_size=30))
def test_a_shape_is_that_of_the_parsed_text(parts: list[str]) -> None:
    """Texts of every awkward letter, as keys and values."""
    text = "".join(parts)
    body = json.dumps({"a" + text: [text, {text: text}], "b" + text: text}).encode()
    assert json_shape(body) == Shape(n_containers=3, n_values=5, n_keys=3)


@pytest.mark.parametrize("shift", range(4))
def test_a_block_ends_anywhere(shift: int) -> None:
    text = b"\\\\" * (BLOCK_BYTES // 2) + b'\\",[' * (BLOCK_BYTES // 8)
    body = b'{"' + b"a" * shift + b'": ["' + text + b'", 1]}'
    assert json_shape(body) == Shape(n_containers=2, n_values=3, n_keys=1)
    assert parse_object(body)["a" * shift][1] == 1


@pytest.mark.parametrize(
    ("unit", "n", "what"),
    [
        (b"[],", jsonbody.MAX_CONTAINERS, "arrays and objects"),
        (b'{"a":1},', jsonbody.MAX_CONTAINERS, "arrays and objects"),
        (b"1,", jsonbody.MAX_VALUES, "values"),
        (b'"",', jsonbody.MAX_VALUES, "values"),
    ],
)
def test_what_a_body_may_hold_is_counted_before_it_is_built(unit: bytes, n: int, what: str) -> None:
    with pytest.raises(RequestError, match=f"{what}, at most {n} are read") as caught:
        parse_object(b'{"junk": [' + unit * n + b"0]}")
    assert caught.value.code == "too_many_values"
    assert parse_object(b'{"junk": [' + unit * (n // 2) + b"0]}")
    assert parse_object(json.dumps({"prompt": unit.decode() * n}).encode())


def test_the_keys_of_all_objects_are_counted() -> None:
    keys = ",".join(f'"{i}":1' for i in range(jsonbody.MAX_KEYS // 2))
    assert len(parse_object(f"{{{keys}}}".encode())) == jsonbody.MAX_KEYS // 2
    with pytest.raises(RequestError, match=f"keys, at most {jsonbody.MAX_KEYS} are read"):
        parse_object(f'{{"a": {{{keys}}}, "b": {{{keys}}}}}'.encode())


@pytest.mark.parametrize("is_large", [False, True])
def test_a_large_body_is_read_beside_the_event_loop(is_large: bool) -> None:
    """Parsed, converted and walked through: each takes long."""

    async def run() -> threading.Thread:
        body = b'{"a": 1}' + b" " * (100_000 if is_large else 0)

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "query_string": b"", "headers": headers}
        asked = Exchange(scope, receive, _send, BodyBudget(MIB, MIB, 10))
        return await asked.read_json(lambda _: threading.current_thread())

    assert (asyncio.run(run()) is not threading.main_thread()) == is_large


def test_names_of_no_use_are_counted_and_not_written() -> None:
    written: list[str] = []

    def warning(name: str) -> str:
        written.append(name)
        return name

    assert bounded(["a"] * 1000, warning)[-1] == "984 more warnings were left out"
    assert len(written) == MAX_WARNINGS
    assert bounded(["a"] * MAX_WARNINGS, warning) == ("a",) * MAX_WARNINGS


def test_biases_are_counted_before_they_are_read() -> None:
    fields = SamplingFields(logit_bias={f"no id {i}": 1 for i in range(1025)})
    with pytest.raises(RequestError, match="1025 entries, at most 1024"):
        to_params(fields, max_tokens=1, logprobs=None, prompt_logprobs=None)


def test_a_key_that_occurs_twice_is_found_in_a_large_body() -> None:
    padding = b" " * jsonbody.EXPLAINED_BYTES
    with pytest.raises(RequestError, match="the key 'b' occurs twice"):
        parse_object(b'{"a": [{"b": 1, "b": 2}]}')
    with pytest.raises(RequestError, match="a key occurs twice"):
        parse_object(b'{"a": [{"b": 1, "b": 2}]}' + padding)
    with pytest.raises(RequestError, match="not JSON"):
        parse_object(b'{"a": [{"b": 1, }]}' + padding)


def test_bodies_take_what_has_arrived_from_one_budget_and_give_back() -> None:
    budget = BodyBudget(3 * MIB, 2 * MIB, patience=10, clock=lambda: 0.0)
    with budget.body() as one, budget.body() as other, budget.body() as small:
        one.add(b" " * MIB)
        one.add(b" " * MIB)
        other.add(b" " * MIB)
        with pytest.raises(BodiesFull, match=f"{3 * MIB} bytes are arriving, 1 more exceed"):
            other.add(b" ")
        small.add(b" " * SMALL_BYTES)
        with pytest.raises(BodiesFull):
            small.add(b" ")
        with pytest.raises(RequestError, match="exceeds"):
            one.add(b" ")
    with budget.body() as again, budget.body() as rest:
        again.add(b" " * 2 * MIB)
        rest.add(b" " * MIB)


def test_who_sends_for_longest_makes_room_but_not_for_those_before() -> None:
    now = [0.0]
    budget = BodyBudget(3 * MIB, 2 * MIB, patience=10, clock=lambda: now[0])
    with budget.body() as slow, budget.body() as slower, budget.body() as ready:
        for body in (slow, slower, ready):
            body.add(b" " * MIB)
        ready.complete()
        now[0] = 9.0
        with budget.body() as late:
            with pytest.raises(BodiesFull, match="bytes are arriving"):
                late.add(b" " * MIB)
            now[0] = 10.0
            late.add(b" " * MIB)
            lost = [body for body in (slow, slower) if not body.data]
            assert len(lost) == 1
            with pytest.raises(BodiesFull, match=f"the memory of the {MIB} bytes of this body"):
                lost[0].add(b" ")
            late.add(b" " * MIB)
            assert [len(body.data) for body in (slow, slower, ready)] == [0, 0, MIB]
            with budget.body() as last, pytest.raises(BodiesFull):
                last.add(b" " * MIB)  # what is complete is parsed, late has not sent for long
            now[0] = 30.0
            with budget.body() as last:
                last.add(b" " * MIB)
                with pytest.raises(BodiesFull):
                    late.add(b" ")


def test_a_body_that_never_fits_is_an_error_at_start() -> None:
    check_body_memory(ServeOptions())
    with pytest.raises(ConfigError, match="raise --max-body-memory"):
        check_body_memory(ServeOptions(max_body_bytes=MIB, max_body_memory=MIB - 1))


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
    assert (caught.value.status, caught.value.param) == (400, "steps")
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
        ({"api_key": "secret"}, "llm.example", True),
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
    assert is_taken(admin_guards(ServeOptions(admin_port=0, admin_key="key")), **asked)


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
