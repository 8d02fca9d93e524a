"""``session_id`` over HTTP: turns in their order, each on what the one before left, for its time,
and for its key alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.e2e.conftest import StartServer
from tests.e2e.harness import Server, n_known, wait_until
from tests.e2e.test_keys import bearer, make
from tests.e2e.test_requests import cached_tokens

CHAT = "/v1/chat/completions"
TALK = [{"role": "user", "content": "Tell me a saga. " * 10}]
ASKED: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "temperature": 0}
BLOCK = 16


def turn(server: Server, messages: list[dict[str, str]], secret: str = "", **fields: Any) -> Any:
    """The answer to one turn."""
    headers = bearer(secret) if secret else {}
    reply = server.post(CHAT, {**ASKED, "messages": messages, **fields}, **headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


def next_turn(messages: list[dict[str, str]], answer: Any) -> list[dict[str, str]]:
    said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
    return [*messages, said, {"role": "user", "content": "And then?"}]


def test_a_second_turn_begins_with_what_the_first_computed(server: StartServer) -> None:
    """On a server of its own: a session holds blocks for minutes, and others wait for all."""
    with server() as running:
        first = turn(running, TALK, session_id="saga", cache_salt="a session")
        messages = next_turn(TALK, first)
        second = turn(running, messages, session_id="saga", cache_salt="a session")
        plain = [turn(running, said, cache_salt="no session") for said in (TALK, messages)]
    before = first["usage"]
    assert cached_tokens(first) == 0
    # The ids of an answer may be others when its text is read again: bytes that are no character.
    assert before["prompt_tokens"] <= cached_tokens(second) < second["usage"]["prompt_tokens"]
    assert [x["choices"] for x in plain] == [x["choices"] for x in (first, second)]


def test_turns_wait_for_each_other_and_no_other_key_is_in_their_line(
    server: StartServer, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    alice, bob = (make(path, name, "inference", "metrics") for name in ("alice", "bob"))
    options: dict[str, Any] = {"faults": {"seconds": 0.01}, "api_key_file": str(path)}
    with server(**options) as running, ThreadPoolExecutor(3) as pool:
        running.http.headers.update(bearer(alice))
        ended: list[str] = []

        def told(name: str, secret: str, n_tokens: int) -> Any:
            answer = turn(running, TALK, secret, session_id="saga", max_tokens=n_tokens)
            ended.append(name)
            return answer

        first = pool.submit(told, "first", alice, 250)
        wait_until(lambda: n_known(running) == 1)
        second = pool.submit(told, "second", alice, 2)
        others = told("other", bob, 2)
        assert ended == ["other"] and n_known(running) == 1, "the second turn is not begun"
        assert cached_tokens(others) == 0, "nothing that another key computed is seen"
        assert cached_tokens(first.result()) == 0
        n_prompt = first.result()["usage"]["prompt_tokens"]
        assert n_prompt - BLOCK <= cached_tokens(second.result()) < n_prompt
        assert ended == ["other", "first", "second"]
        assert cached_tokens(turn(running, TALK, bob, session_id="saga")) >= n_prompt - BLOCK


def flood(server: Server) -> None:
    """More than the cache holds, of others."""
    for i in range(12):
        prompt = [1 + i, *(2 + (i * 7 + j) % 200 for j in range(400))]
        assert server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).is_success


def test_what_a_session_left_is_kept_for_its_time(server: StartServer) -> None:
    with server(faults={"n_blocks": 64}) as running:
        for fields, seconds, is_kept in (
            ({"cache_salt": "none"}, 0.0, False),
            ({"cache_salt": "short", "session_id": "saga", "cache_ttl": 1}, 1.2, False),
            ({"cache_salt": "long", "session_id": "saga"}, 0.0, True),
        ):
            first = turn(running, TALK, **fields)
            time.sleep(seconds)
            flood(running)
            second = turn(running, next_turn(TALK, first), **fields)
            n_cached = cached_tokens(second)
            n_wanted = first["usage"]["prompt_tokens"] if is_kept else 0
            assert n_wanted <= n_cached < n_wanted + 4 * BLOCK, fields


def test_a_session_that_is_closed_keeps_nothing(server: StartServer) -> None:
    """What it held may be evicted at once; one that is open is kept for its time."""

    def post(path: str, body: dict[str, Any]) -> Any:
        return running.http.post(running.url + path, json=body)

    with server(faults={"n_blocks": 64}) as running:
        for closes in (False, True):
            opened = post("/open_session", {"capacity_of_str_len": 2000})
            name = opened.json()
            assert opened.status_code == 200 and isinstance(name, str)
            first = turn(running, TALK, session_id=name, cache_salt=name)
            if closes:
                closed = post("/close_session", {"session_id": name})
                assert closed.json() == {"session_id": name, "closed": True}
                again = post("/close_session", {"session_id": name})
                assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")
            else:
                long = [{"role": "user", "content": "x" * 2001}]
                refused = running.post(CHAT, {"messages": long, "session_id": name})
                assert refused.json()["error"]["code"] == "session_too_long"
            flood(running)
            second = turn(running, next_turn(TALK, first), session_id=name, cache_salt=name)
            assert (cached_tokens(second) > 0) is not closes
