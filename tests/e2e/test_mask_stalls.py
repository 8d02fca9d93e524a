"""Masks that stall beside bodies that come late: nobody waits for either but who sent them."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.e2e.conftest import StartServer
from tests.e2e.harness import Server, bare, connect, post_bytes, read_reply

PATH = "/v1/completions"
N_LATE = 6
FAULTS = {"seconds": 0.002, "mask_seconds": 0.2}
SLOW: dict[str, Any] = {"prompt": "slow", "max_tokens": 40, "seed": 1, "guided_regex": "[a-z]{30}"}


def late_body(number: int) -> dict[str, Any]:
    return {"prompt": f"late {number}", "max_tokens": 24, "ignore_eos": True, "seed": number}


def ask(server: Server, body: dict[str, Any]) -> bytes:
    answer = server.post(PATH, body)
    assert answer.status_code == 200, answer.text
    return bare(answer.content)


def ask_late(server: Server, body: dict[str, Any]) -> bytes:
    """Its bytes come one by one, but for the first half."""
    data = post_bytes(PATH, json.dumps({"model": server.model, **body}).encode())
    begun = len(data) - 40
    with connect(server) as sock:
        sock.sendall(data[:begun])
        for i in range(begun, len(data)):
            time.sleep(0.02)
            sock.sendall(data[i : i + 1])
        reply = read_reply(sock)
    assert reply is not None and reply.status == 200
    return bare(reply.body)


def test_late_bodies_while_masks_stall(server: StartServer) -> None:
    bodies = [late_body(i) for i in range(N_LATE)]
    with server(faults=FAULTS, body_timeout=30) as running, ThreadPoolExecutor(16) as pool:
        alone = [ask(running, body) for body in bodies]
        slow = [pool.submit(ask, running, SLOW) for _ in range(3)]
        late = [pool.submit(ask_late, running, body) for body in bodies]
        assert [each.result() for each in late] == alone
        assert not any(each.done() for each in slow), "they stall for seconds"
        said = {each.result() for each in slow}
        assert said == {ask(running, SLOW)}
        structured = {**late_body(7), "guided_regex": "[a-c]{3}"}
        before = ask(running, structured)
        assert ask_late(running, structured) == before
        assert running.get("/health").status_code == 200
