"""What takes long is not done on the event loop, or a piece in each of its passes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir.config.serving import ServeOptions
from kvasir.serve import beams
from kvasir.serve.dialects import completions
from kvasir.serve.echo import INLINE_TOKENS, read_echoes
from kvasir.serve.routes_info import get_metrics
from kvasir.serve.routes_tokens import post_detokenize, post_tokenize
from kvasir.serve.slices import Slices
from kvasir.text.beam import Beam

SIZES = pytest.mark.parametrize("n", [INLINE_TOKENS, INLINE_TOKENS + 1])


class Heard:
    """A tokenizer and an exchange that note on which threads they are used."""

    special_ids: frozenset[int] = frozenset()
    strips_space = False
    token_texts: Mapping[int, str | None] = {}

    def __init__(self, body: dict[str, Any] | None = None) -> None:
        self.body = body or {}
        self.threads: set[threading.Thread] = set()
        self.sent: dict[str, Any] = {}

    def decode(self, ids: Any, skip_special: bool) -> str:
        self.threads.add(threading.current_thread())
        return "a" * len(ids)

    def piece(self, token: int) -> str:
        self.threads.add(threading.current_thread())
        return "a"

    @asynccontextmanager
    async def reading(self, read: Any) -> AsyncIterator[Any]:
        yield read(self.body)

    async def send_json(self, value: dict[str, Any]) -> None:
        self.sent = value

    @property
    def is_beside(self) -> bool:
        """Beside the event loop, and nowhere else."""
        assert self.threads
        return threading.main_thread() not in self.threads


def service(heard: Heard) -> Any:
    async def open() -> Any:
        async def encode(prompt: str, **_: Any) -> tuple[int, ...]:
            return (1,) * len(prompt)

        sizes = SimpleNamespace(vocab_size=8, max_model_len=4096)
        return SimpleNamespace(tokenizer=heard, encode=encode), sizes

    model = SimpleNamespace(open=open)
    return SimpleNamespace(model_of=lambda _: model, options=ServeOptions())


@SIZES
def test_a_long_echo(n: int) -> None:
    heard, ids = Heard(), (1,) * n
    asked = completions.read({"model": "m", "prompt": list(ids), "echo": True}, strict=True)
    (echo,) = asyncio.run(read_echoes(asked, [ids], heard))
    assert echo.text == "a" * n
    assert heard.is_beside == (n > INLINE_TOKENS)


@SIZES
def test_many_tokens_to_text(n: int) -> None:
    heard = Heard({"tokens": [1] * n})
    asyncio.run(post_detokenize(service(heard), heard))
    assert heard.sent == {"prompt": "a" * n}
    assert heard.is_beside == (n > INLINE_TOKENS)


def test_names_of_tokens() -> None:
    heard = Heard({"prompt": "a" * 200, "return_token_strs": True})
    asyncio.run(post_tokenize(service(heard), heard))
    assert heard.sent["token_strs"] == ["a"] * 200
    assert heard.is_beside


def test_metrics_of_many_clients_come_in_turns() -> None:
    """Each takes longer than a slice, so that the loop has a pass between two."""
    told: list[float] = []
    now = 0.0

    def text(names: frozenset[str]) -> bytes:
        nonlocal now
        assert not names
        told.append(now)
        now += 0.004
        return b""

    async def run() -> int:
        slices = Slices(clock=lambda: now)
        model = SimpleNamespace(client=SimpleNamespace(slices=slices))
        asked = SimpleNamespace(default=model, metrics=SimpleNamespace(text=text))
        questions = [asyncio.create_task(_ask(asked)) for _ in range(6)]
        n_passes = 0
        while not all(question.done() for question in questions):
            n_told = len(told)
            await asyncio.sleep(0)
            assert len(told) - n_told <= 1
            n_passes += 1
        return n_passes

    assert asyncio.run(run()) >= len(told) == 6


async def _ask(service: Any) -> None:
    async def send_bytes(body: bytes, media_type: bytes) -> None:
        assert body == b""

    asked: Any = SimpleNamespace(send_bytes=send_bytes, scope={"query_string": b""})
    await get_metrics(service, asked)


def test_beams_are_worded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beams, "_whole", lambda job, beam: beam)
    found = [Beam((i,), 0.0) for i in range(5)]
    work = beams._wholes(None, found)
    assert sum(1 for _ in work) == len(found)
