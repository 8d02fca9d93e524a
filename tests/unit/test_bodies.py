"""What bodies may take, and how they are read."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from kvasir.config.serving import ServeOptions, check_body_memory
from kvasir.core.errors import ConfigError, RequestError
from kvasir.serve import jsonbody
from kvasir.serve.bodies import LARGE_READERS, READERS, SMALL_BYTES, BodiesFull, BodyBudget, joined
from kvasir.serve.exchange import ClientGone, Exchange
from kvasir.serve.jsonbody import parse_object
from kvasir.serve.jsonshape import BLOCK_BYTES, Shape, json_shape
from kvasir.serve.protocol.sampling import SamplingFields, to_params
from kvasir.validation.warn import MAX_WARNINGS, bounded

MIB = 2**20


async def _receive() -> Message:
    raise AssertionError("nothing is read")


async def _send(message: Message) -> None:
    raise AssertionError(f"{message} is sent")


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
        async with asked.reading(lambda _: threading.current_thread()) as thread:
            return thread

    assert (asyncio.run(run()) is not threading.main_thread()) == is_large


def test_a_few_large_bodies_are_understood_at_a_time() -> None:
    """Whatever comes of it, the next one has its turn; small ones do not wait."""
    bodies = BodyBudget(MIB, MIB, 10)
    inside: list[int] = []
    most: list[int] = []

    async def ask(i: int, n_bytes: int) -> None:
        messages = [{"type": "http.request", "body": b'{"a": 1}' + b" " * n_bytes}]

        async def receive() -> Message:
            while not messages:
                await asyncio.sleep(0.001)
                if i in left:
                    messages.append({"type": "http.disconnect"})
            return messages.pop()

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "query_string": b"", "headers": headers}
        with suppress(ZeroDivisionError, ClientGone):
            async with Exchange(scope, receive, _send, bodies).reading(dict):
                inside.append(i)
                most.append(sum(j >= 0 for j in inside))
                await asyncio.sleep(0.001)
                inside.remove(i)
                assert i < 0 or 1 // (i % 2)

    async def run() -> None:
        large = [asyncio.create_task(ask(i, 100_000)) for i in range(8)]
        lane = bodies.lanes[1]
        async with lane, lane:
            await asyncio.sleep(0.01)
            assert not inside
            await ask(-1, 0)
            await ask(-2, 30_000)
            left.add(4)
            await asyncio.wait_for(large[4], 10)
            large[5].cancel()
            await asyncio.sleep(0.01)
        await asyncio.gather(*large, return_exceptions=True)

    left: set[int] = set()
    asyncio.run(run())
    assert max(most) <= LARGE_READERS
    assert len(most) == 8, "one has left, and one was cancelled"
    assert [lane._value for lane in bodies.lanes] == [READERS, LARGE_READERS]


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
            lost = [body for body in (slow, slower) if not body.n_taken]
            assert len(lost) == 1
            with pytest.raises(BodiesFull, match=f"the memory of the {MIB} bytes of this body"):
                lost[0].add(b" ")
            late.add(b" " * MIB)
            assert [body.n_taken for body in (slow, slower, ready)] == [0, 0, MIB]
            with budget.body() as last, pytest.raises(BodiesFull):
                last.add(b" " * MIB)  # what is complete is parsed, late has not sent for long
            now[0] = 30.0
            with budget.body() as last:
                last.add(b" " * MIB)
                with pytest.raises(BodiesFull):
                    late.add(b" ")


def test_a_body_is_what_came_of_it() -> None:
    sent = [bytes([i]) * (i * 1000) for i in range(1, 50)]
    budget = BodyBudget(3 * MIB, 2 * MIB, patience=10)
    with budget.body() as body:
        for part in sent:
            body.add(part)
        assert body.size == sum(map(len, sent))
        parts = body.complete()
    assert joined(parts) == b"".join(sent)
    assert not any(parts)


def test_one_large_body_is_read_in_each_pass_of_the_loop() -> None:
    budget, turns = BodyBudget(MIB, MIB, patience=10), list[tuple[int, int]]()

    async def passes() -> None:
        n_passes = 0

        async def read(i: int) -> None:
            for _ in range(3):
                await budget.turn()
                turns.append((n_passes, i))

        readers = [asyncio.create_task(read(i)) for i in range(4)]
        while not all(reader.done() for reader in readers):
            await asyncio.sleep(0)
            n_passes += 1

    asyncio.run(passes())
    assert len({n for n, _ in turns}) == len(turns) == 12
    assert [i for _, i in turns] == [0, 1, 2, 3] * 3


def test_a_body_that_never_fits_is_an_error_at_start() -> None:
    check_body_memory(ServeOptions())
    with pytest.raises(ConfigError, match="raise --max-body-memory"):
        check_body_memory(ServeOptions(max_body_bytes=MIB, max_body_memory=MIB - 1))


@pytest.mark.parametrize("n_bytes", [30_000, 100_000])
def test_who_waits_aside_holds_nobody_up(n_bytes: int) -> None:
    """What waits counts as a body, and nobody waits for who has left."""
    bodies, left, waits = BodyBudget(MIB, MIB, 10), asyncio.Event(), asyncio.Event()
    used: list[int] = []

    def exchange() -> Exchange:
        messages = [{"type": "http.request", "body": b'{"a": 1}' + b" " * n_bytes}]

        async def receive() -> Message:
            if not messages:
                await left.wait()
                return {"type": "http.disconnect"}
            return messages.pop()

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "query_string": b"", "headers": headers}
        return Exchange(scope, receive, _send, bodies)

    async def slow(asked: Exchange) -> None:
        async with asked.reading(dict):
            await asked.aside(waits.wait)
            used.append(bodies.lanes[n_bytes > SMALL_BYTES]._value)

    async def run() -> None:
        some = [asyncio.create_task(slow(exchange())) for _ in range(5)]
        async with asyncio.timeout(10):
            await asyncio.sleep(0.05)
            async with exchange().reading(dict) as found:
                assert found == {"a": 1}
            assert bodies._used == (5 * (n_bytes + 8) if n_bytes > SMALL_BYTES else 0)
            waits.set()
            await asyncio.gather(*some)
            assert len(used) == 5 and max(used) < READERS, "the lane was taken again"
            waits.clear()
            last = asyncio.create_task(slow(exchange()))
            await asyncio.sleep(0.05)
            left.set()
            with pytest.raises(ClientGone):
                await last

    asyncio.run(run())
    assert [lane._value for lane in bodies.lanes] == [READERS, LARGE_READERS]
    assert bodies._used == 0
