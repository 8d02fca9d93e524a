"""A run without an engine and without HTTP: the events of the engine are given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.core.messages import Ready, TokenEvent
from kvasir.serve.admission import AdmissionLimits
from kvasir.serve.answer import Dialect
from kvasir.serve.dialects.table import DIALECTS
from kvasir.serve.gate import Gate
from kvasir.serve.generation import Nobody
from kvasir.serve.jobs import Server, resolve_request
from kvasir.serve.parts import Parts
from kvasir.serve.resolved import Envelope, Resolved
from kvasir.serve.run import AnswerRun
from kvasir.serve.slices import Slices
from kvasir.serve.streams import EventStream
from kvasir.serve.text import TextModel, load_text
from kvasir.serve.trial import AskedCompiler, TrialCompiler
from kvasir.timing.timeline import Timeline
from kvasir.weights.source import open_model
from tests.e2e.toy_model import write_toy_model

INFO = Ready(
    model="toy",
    vocab_size=256,
    max_model_len=4096,
    n_blocks=8,
    block_size=16,
    numerics_id="n",
    key_root="k",
    max_num_seqs=4,
)
ENVELOPE_TIME = 1_700_000_000


def toy_text(folder: Path) -> TextModel:
    """Tokens are the bytes of UTF-8."""
    return load_text(open_model(write_toy_model(folder)))


def idle_compiler() -> TrialCompiler:
    """It starts nothing before it is asked."""
    return TrialCompiler(Path("none"), seconds=1, megabytes=16)


def toy_server(text: TextModel) -> Server:
    """What requests are resolved with."""
    limits = AdmissionLimits(128, 10_000)
    compiler = AskedCompiler(idle_compiler())
    return Server(text, INFO, limits, Slices(), lambda: 1, 10**6, compiler)


def resolved_of(dialect: Dialect, body: dict[str, Any], text: TextModel) -> Resolved:
    """As it comes back from where it is stored."""
    found = asyncio.run(
        resolve_request(dialect.read(body, strict=False), toy_server(text), "toy", 0.0)
    )
    return msgspec.json.decode(msgspec.json.encode(found), type=Resolved)


class Client:
    """Its engine has said everything already."""

    def __init__(self, events: Sequence[TokenEvent | KvasirError]) -> None:
        self.slices = Slices()
        self.gate = Gate(lambda is_frozen: None)
        self.timeline = Timeline(time.monotonic)
        self.n_released = 0
        self._events = events

    async def submit(self, prompts: Any, n: int, *_: Any, **__: Any) -> EventStream:
        stream = EventStream(0, len(prompts) * n, 10**6)
        for event in self._events:
            if isinstance(event, KvasirError):
                stream.fail(event)
            else:
                stream.push(event)
        return stream

    def cancel(self, stream: EventStream, ids: Sequence[int]) -> None:
        stream.open.difference_update(ids)

    def release(self, stream: EventStream) -> None:
        self.n_released += 1


def said(choice: int, text: str, finish: str | None = None, **more: Any) -> TokenEvent:
    """The bytes of ``text`` in one step of ``choice``."""
    return TokenEvent(choice, tokens=tuple(text.encode()), finish=finish, **more)


def run_of(
    resolved: Resolved, text: TextModel, events: Sequence[TokenEvent | KvasirError]
) -> AnswerRun:
    model: Any = SimpleNamespace(client=Client(events), metrics=MagicMock())
    dialect = DIALECTS[resolved.dialect]
    envelope = Envelope(f"{dialect.prefix}0", ENVELOPE_TIME)
    grammar = dialect.grammar(resolved, envelope, text.tokenizer)
    return AnswerRun(resolved, grammar, model, text.tokenizer, Nobody())


async def heard(run: AnswerRun) -> list[bytes]:
    """The events of a stream, and how it fails."""
    found: list[bytes] = []
    try:
        async with aclosing(run.batches()) as batches:
            async for batch in batches:
                found += map(joined, batch)
    except KvasirError as error:
        found.append(run.grammar.failure(error))
    return found


def joined(parts: Parts) -> bytes:
    return b"".join(parts)
