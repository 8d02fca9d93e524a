"""Requests of many choices, and many questions, beside two streams that must not notice."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from kvasir.timing.timeline import MAX_FINISHED, MAX_STEPS
from tests import tiny
from tests.e2e import pulse
from tests.e2e.canaries import Watch, watching
from tests.e2e.harness import Server, connect, exchange, head, post_bytes, running_server, step_back
from tests.e2e.mixes import Outcome, run_mix

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
N_SLOTS = 64
N_CHOICES = 1024 + N_SLOTS
"""Of the largest request."""
CONTEXT = 4096
MOST = {"prompt": [[i + 2] for i in range(8)], "n": 128, "max_tokens": 4}
"""Of a request: 1024 choices, in 60 bytes."""
BIAS = {str(i): i % 7 - 3 for i in range(2, 300)}


API_SECONDS = 0.050
"""CPU time that may pass between two beats of the event loop, a beat and collected garbage
included: a slice has 2 ms."""
ENGINE_SECONDS = 0.020
"""CPU time that messages may take between two steps beyond their share of a step."""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The native executor on a tiny model, one thread: the machine's other core is for the rest."""
    folder = tmp_path_factory.mktemp("floods")
    model = tiny.write_hf(tiny.llama(max_position_embeddings=CONTEXT), folder / "model")
    options = {"threads": 1, "kv_memory": 16 << 20, "max_num_seqs": N_SLOTS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULSE", str(folder))
        with running_server(
            model, executor="cpu", name="tiny", engine=options, module=pulse.ENGINE
        ) as server:
            yield server


@pytest.fixture(scope="module")
def watch(native: Server) -> Iterator[Watch]:
    """What memory is compared with is that of a server that has answered, and was not attacked: its
    KV blocks and the buffers of a full step are touched, and it remembers as many steps, and as
    many requests that ended, as it ever will: with fewer, the songs of a slow run would add 8 MiB
    of them. Many long conversations leave 10 MiB once: that is there already."""
    long_chats(native)
    assert (
        ask(native, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}, CHAT) == 200
    )
    for i in range(2 * N_SLOTS):
        prompt = [3 + (i + j * 11) % 300 for j in range(500)]
        assert ask(native, {"prompt": prompt, "max_tokens": 8}) == 200
    long_chats(native)
    full = {"prompt": [[i + 2] for i in range(N_SLOTS)], "max_tokens": 256}
    assert ask(native, full) == 200
    for _ in range(MAX_STEPS // CONTEXT):
        assert ask(native, {"prompt": [5], "max_tokens": CONTEXT - 1}) == 200
    for _ in range(MAX_FINISHED // 1024):
        assert ask(native, MOST) == 200
    native.wait_idle()
    rest = native.rss(), psutil.Process(native.engine_pid()).memory_info().rss
    with watching(native, rest) as found:
        yield found


def ask(server: Server, body: dict[str, Any], path: str = TEXT) -> int:
    """The status; asks again while the queue is full of what those before have left."""
    while (reply := server.post(path, {"ignore_eos": True, **body})).status_code == 429:
        time.sleep(0.05)
    return int(reply.status_code)


def hang_up(server: Server, body: dict[str, Any], seconds: float = 0.0) -> None:
    """Asks, and leaves after so long."""
    whole = {"model": server.model, "ignore_eos": True, **body}
    with connect(server) as sock:
        sock.sendall(post_bytes(TEXT, json.dumps(whole).encode()))
        time.sleep(seconds)


def many_choices(server: Server) -> None:
    assert ask(server, MOST) == 200


def many_prompts(server: Server) -> None:
    assert ask(server, {"prompt": ["tell me"] * 1024, "max_tokens": 4}) == 200


def many_biases(server: Server) -> None:
    assert ask(server, {**MOST, "logit_bias": BIAS}) == 200


def long_prompts(server: Server) -> None:
    prompts = [[3 + (i * 7 + j) % 300 for j in range(500)] for i in range(16)]
    assert ask(server, {"prompt": prompts, "n": 8, "max_tokens": 4}) == 200


def many_scores(server: Server) -> None:
    asked = {"prompt": [[5], [6]], "n": 64, "max_tokens": 16, "logprobs": 20, "echo": True}
    assert ask(server, asked) == 200


def many_large_scores(server: Server) -> None:
    """An answer of 26 MB."""
    prompts = [[i + 2] for i in range(8)]
    asked = {"prompt": prompts, "n": 32, "max_tokens": 300, "logprobs": 20}
    assert ask(server, asked) == 200


def long_scores(server: Server) -> None:
    """A whole context, as a stream and as a whole."""
    prompt = [3 + i * 7 % 300 for i in range(CONTEXT - 1)]
    asked = {"prompt": prompt, "echo": True, "logprobs": 20}
    assert ask(server, {**asked, "max_tokens": 0}) == 200
    assert ask(server, {**asked, "max_tokens": 1, "stream": True}) == 200


def long_chat_scores(server: Server) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}
    assert ask(server, {**asked, "top_logprobs": 20, "n": 8, "max_tokens": 300}, CHAT) == 200


def due_and_gone(server: Server) -> None:
    """Many choices with a deadline, whose sender does not wait."""
    for _ in range(4):
        hang_up(server, {**MOST, "deadline_ms": 60_000})


def gone(server: Server) -> None:
    for _ in range(4):
        hang_up(server, {**MOST, "max_tokens": 400})


def gone_in_the_middle(server: Server) -> None:
    hang_up(server, {**MOST, "max_tokens": 400, "stream": True}, 0.3)


def streams(server: Server) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "n": 128, "max_tokens": 8}
    assert ask(server, {**asked, "stream": True}, CHAT) == 200


def beams(server: Server) -> None:
    asked = {"prompt": [[i + 2] * 40 for i in range(8)], "n": 16, "use_beam_search": True}
    assert ask(server, {**asked, "max_tokens": 6}) == 200


def timelines(server: Server) -> None:
    """24 clients, each with the largest question."""
    asked = head("GET", "/v1/timeline?steps=4096", "Connection: close")
    with ThreadPoolExecutor(24, initializer=step_back) as pool:
        replies = [pool.submit(exchange, server, asked) for _ in range(24)]
        assert all((reply := x.result()) and reply.status == 200 for x in replies)


def long_chats(server: Server) -> None:
    """32 clients with conversations of 1000 messages, which are read before they are refused."""
    asked = {"messages": [{"role": "user", "content": "hi"}] * 1000, "max_tokens": 1}
    with ThreadPoolExecutor(32, initializer=step_back) as pool:
        assert set(pool.map(lambda _: ask(server, asked, CHAT), range(64))) == {400}


def refused(server: Server) -> None:
    """More than could ever be served."""
    for _ in range(10):
        assert ask(server, {"prompt": ["tell me"] * 1024, "n": 128, "max_tokens": 4}) == 400
        assert ask(server, {"prompt": [[1]] * 256, "n": 128, "deadline_ms": 60_000}) == 400


ATTACKS: tuple[Callable[[Server], None], ...] = (
    many_choices,
    many_prompts,
    many_biases,
    long_prompts,
    many_scores,
    many_large_scores,
    long_scores,
    long_chat_scores,
    due_and_gone,
    gone,
    gone_in_the_middle,
    streams,
    beams,
    timelines,
    long_chats,
    refused,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_beside_two_streams(watch: Watch, attack: Callable[[Server], None]) -> None:
    check(watch, attack)


def check(watch: Watch, attack: Callable[[Server], None]) -> None:
    pulse.take_notes("api"), pulse.take_notes("engine")
    try:
        print(watch.holds(attack))
    finally:
        api, engine = pulse.take_notes("api"), pulse.take_notes("engine")
        print(f"API {max(api, default=0) * 1e3:.1f}, engine {max(engine, default=0) * 1e3:.1f} ms")
        assert max(api, default=0.0) <= API_SECONDS
        assert max(engine, default=0.0) <= ENGINE_SECONDS


def test_a_random_mix_beside_two_streams(watch: Watch) -> None:
    """``make test-mix`` sends 10,000. Each attack before it has left a little."""
    watch.forget_rest()
    n_requests, first = int(os.environ.get("MIX", "150")), int(os.environ.get("FIRST", "0"))
    outcomes: list[Outcome] = []

    def mix(server: Server) -> None:
        outcomes.append(run_mix(server, n_requests, seed=first + len(outcomes)))

    try:
        check(watch, mix)
    finally:
        print(outcomes)
    assert not any(outcome.wrong for outcome in outcomes)
