"""A server that hands its sockets over otherwise than it should."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvasir.core.errors import ConfigError
from kvasir.serve import handover


@pytest.mark.parametrize(
    ("data", "n_sockets"),
    [
        (b"", 0),
        (b"nonsense", 0),
        (b"null", 0),
        (b"5", 0),
        (b'["clients"]', 0),
        (b'["clients"]', 2),
        (b'[["clients"]]', 1),
        (b'{"clients": 1}', 1),
        (None, 0),
    ],
)
def test_what_is_no_handover_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None, n_sockets: int
) -> None:
    """None: nothing is said at all."""
    monkeypatch.setattr(handover, "GIVE_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(str(tmp_path / "sock"))
        listener.listen(1)

        def give() -> socket.socket:
            connection, _ = listener.accept()
            if data is not None:
                socket.send_fds(connection, [data], [listener.fileno()] * n_sockets)
                connection.shutdown(socket.SHUT_WR)
            return connection

        given = pool.submit(give)
        with pytest.raises(ConfigError, match="gives no sockets"):
            handover.take(str(tmp_path / "sock"))
        given.result().close()


@pytest.mark.parametrize("answer", [b"done", b"", None])
def test_a_predecessor_that_is_stuck_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: bytes | None
) -> None:
    """None: it says nothing, and has not ended."""
    monkeypatch.setattr(handover, "GIVE_SECONDS", 0.2)
    mine, other = socket.socketpair()
    with other, ThreadPoolExecutor(1) as pool:
        saying = pool.submit(handover.Taken({}, mine).say_ready)
        assert other.recv(99) == handover.READY
        if answer is not None:
            other.sendall(answer)
            other.shutdown(socket.SHUT_WR)
        saying.result(timeout=10)
    assert [record.name for record in caplog.records] == ["kvasir.handover"] * (answer is None)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_successor_that_comes_late_does_not_serve(is_gone: bool) -> None:
    mine, other = socket.socketpair()
    with other:
        other.sendall(handover.TAKEN)
        if is_gone:
            other.close()
        with pytest.raises(ConfigError, match="another successor"):
            handover.Taken({}, mine).say_ready()
