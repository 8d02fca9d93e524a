"""For how long nothing was asked."""

from __future__ import annotations

from kvasir.serve.rest import MAX_LOOK_SECONDS, Idleness


def test_idleness_counts_from_the_last_request() -> None:
    now = [100.0]
    idle = Idleness(10.0, lambda: now[0])

    def look(at: float, n_asked: int, engine: str = "first", *, is_used: bool = False) -> bool:
        now[0] = at
        return idle.look(n_asked, engine, is_used=is_used)

    assert not look(100, 0)
    assert not look(109.9, 0)
    assert look(110, 0)
    assert not look(111, 1)  # one came and went between two looks
    assert not look(120.9, 1)
    assert look(121, 1)
    assert not look(125, 1, is_used=True)
    assert not look(200, 1, is_used=True)
    assert not look(209, 1)
    assert look(210, 1)
    assert not look(211, 1, "second")  # that one slept, and was woken before this look
    assert not look(220.9, 1, "second")
    assert look(221, 1, "second")


def test_a_short_time_is_looked_at_often() -> None:
    assert Idleness(1.0, lambda: 0.0).look_seconds == 0.25
    assert Idleness(3600.0, lambda: 0.0).look_seconds == MAX_LOOK_SECONDS
