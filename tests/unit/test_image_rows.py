"""Rows of images are forgotten when it is asked for, behind what was sent before."""

from __future__ import annotations

import socket

import pytest

from kvasir.core.params import TokenParams
from kvasir.core.request import EngineRequest
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.serve.errands import Errands
from kvasir.serve.messages import ResetMediaCache, Submit
from kvasir.serve.outbox import Outbox
from tests.sizes import config_of


def test_rows_of_images_are_forgotten_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(256, 4, 64, 64, 16, vocab_size=101)
    engine = Engine(FakeExecutor(config.sizes), Scheduler(config))
    running: list[int] = []
    monkeypatch.setattr(
        Scheduler, "forget_media", lambda _: running.append(engine.stats().n_received)
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        errands = Errands(engine, Outbox(ours))
        for i in range(2):
            errands.take(Submit(EngineRequest(i, (2, 3, 4), TokenParams(seed=5, max_tokens=3))))
            errands.take(ResetMediaCache())
        errands.run(1.0, is_idle=True)
        assert running == [1, 2] and not errands
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)  # nobody waits for an answer
