"""R87 of the robustness list on a running server: a model whose chat template never ends, fills the
memory, or reaches for Python is refused chat by chat, and everything else is answered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.harness import Server, canaries, running_server
from tests.e2e.toy_model import write_toy_model
from tests.unit.test_chat_sandbox import HOSTILE

CHAT = "/v1/chat/completions"
TALK = [{"role": "user", "content": "hi"}]
NAMES = ("long range", "big output", "doubling text", "class", "include")


def refused(server: Server) -> str:
    """What is said to who asks for a chat."""
    reply = server.post(CHAT, {"messages": TALK, "max_tokens": 4})
    assert reply.status_code == 400, reply.text
    return str(reply.json()["error"]["message"])


@pytest.mark.parametrize("name", NAMES)
def test_r87_a_hostile_template_of_a_model(tmp_path: Path, name: str) -> None:
    folder = write_toy_model(tmp_path / "toy", template=HOSTILE[name])
    with running_server(folder) as server, ThreadPoolExecutor(4) as pool:
        list(pool.map(refused, [server] * 4))  # so many texts of the largest size at once, once
        with canaries(server):
            said = list(pool.map(refused, [server] * 4))
        assert len(set(said)) == 1 and "template" in said[0]
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).is_success
