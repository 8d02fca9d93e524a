"""R80: thousands of schemas, each asked for once. What is compiled, judged and remembered of them
is bounded in every process, each answer has the form of its own, and who asks for none does not
notice.

Part of ``make test-long``; UNIQUE says how many.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import RSS_SLACK, Server, canaries
from tests.forms import IS_LONG, asked_of

N_SCHEMAS = asked_of("UNIQUE", 40, 10_000)
AT_ONCE = 4
REMEMBERED = 64 * 2**20
"""Bytes of what a server remembers of its newest answers, and did not before its first."""
CHAT = "/v1/chat/completions"
TALK = [{"role": "user", "content": "hello"}]


def kind_of(chance: random.Random) -> dict[str, Any]:
    most = chance.randrange(1, 10**6)
    return chance.choice(
        (
            {"type": "integer", "minimum": 0, "maximum": most},
            {"enum": [f"e{most}", f"f{most}", most]},
            {"type": "boolean"},
            {"type": "string", "maxLength": most % 9},
            {"type": "string", "pattern": f"^[a-f]{{{most % 9}}}{most}$"},
            {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        )
    )


def schema_of(number: int) -> dict[str, Any]:
    """No two are alike, whatever else they are."""
    chance = random.Random(number)
    properties = {f"p{i}_{number}": kind_of(chance) for i in range(chance.randrange(1, 5))}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def ask(server: Server, number: int) -> None:
    schema = schema_of(number)
    form = {"json": schema, "disable_any_whitespace": True}
    body = {"messages": TALK, "max_tokens": 300, "seed": number, "structured_outputs": form}
    answer = server.post(CHAT, body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert list(json.loads(choice["message"]["content"])) == list(schema["properties"])


def resident(server: Server) -> dict[str, int]:
    """Bytes of each process that the server has."""
    every = psutil.Process(server.process.pid).children(recursive=True)
    found = {one.cmdline()[2]: one.memory_info().rss for one in every if len(one.cmdline()) > 2}
    return {**found, "serve": server.rss()}


@pytest.mark.skipif(not IS_LONG, reason="a part of make test-long")
@pytest.mark.timeout(7200)
def test_schemas_that_nobody_asked_for_before(server: StartServer) -> None:
    """The first half fills what is remembered: verdicts, compiled grammars, names and times of
    answers."""
    told: list[dict[str, int]] = []
    with (
        server() as running,
        canaries(running, rss_slack=REMEMBERED),
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        for number, _ in enumerate(pool.map(partial(ask, running), range(N_SCHEMAS)), start=1):
            if number % (N_SCHEMAS // 10) == 0:
                told.append(resident(running))
                print(number, {name: n >> 20 for name, n in told[-1].items()}, "MiB", flush=True)
    before, after = told[4], told[-1]
    assert before.keys() == after.keys()
    for name, n_bytes in after.items():
        assert n_bytes < 1.02 * before[name] + RSS_SLACK, (name, told)
