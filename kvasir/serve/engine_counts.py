"""What the keeper of an engine process counts of its life."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineCounts:
    """Only grow, but for ``is_asleep``."""

    deaths: int = 0
    """Processes that ended unasked, hang kills included."""
    hang_kills: int = 0
    """Processes killed because a step did not end."""
    restarts: int = 0
    """Processes started after the first one, those that were woken too."""
    replays: int = 0
    """Choices that another process went on with."""
    sleeps: int = 0
    is_asleep: bool = False
