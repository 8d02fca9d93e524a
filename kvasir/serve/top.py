"""The names that use most, when there may be any number of them."""

from __future__ import annotations

from dataclasses import dataclass

OTHER = "other"
MAX_SHOWN = 16
"""Names with a series of their own at a time."""
N_WATCHED = 64
"""Names whose use is counted: whoever has more than a 64th of all use is among them."""
FADED = 4
"""A name whose share is below a quarter of a 64th gives its series to one that has a 64th."""
MAX_NAME = 64


@dataclass(slots=True)
class _Use:
    counted: float
    error: float
    """Of it, what may be of names that were counted in this place before."""


class TopNames:
    """Space-Saving (Metwally, Agrawal, El Abbadi, 2005). A name is shown once it is certain to have
    a 64th of all use so far, so the names ever shown grow as the logarithm of all use, however many
    there are."""

    def __init__(self, max_shown: int = MAX_SHOWN) -> None:
        self._max_shown = max_shown
        self._uses: dict[str, _Use] = {}
        self._total = 0.0
        self.shown: set[str] = set()

    def use(self, name: str, n: float) -> tuple[str, str | None]:
        """Counts ``n`` more of ``name``. What it is shown as, and who is not shown any more."""
        name = name[:MAX_NAME]
        self._total += n
        use = self._uses.get(name)
        if use is not None:
            use.counted += n
        elif len(self._uses) < N_WATCHED:
            self._uses[name] = _Use(n, 0.0)
        else:
            least = min(self._uses, key=lambda each: self._uses[each].counted)
            before = self._uses.pop(least).counted
            self._uses[name] = _Use(before + n, before)
        gone = None if name in self.shown else self._show(name)
        return (name if name in self.shown else OTHER), gone

    def _show(self, name: str) -> str | None:
        """Shows ``name`` if it may be; who gave it the place."""
        if self._certain(name) * N_WATCHED < self._total:
            return None
        gone = None
        if len(self.shown) >= self._max_shown:
            gone = min(self.shown, key=self._certain)
            if self._certain(gone) * N_WATCHED * FADED >= self._total:
                return None
            self.shown.discard(gone)
        self.shown.add(name)
        return gone

    def _certain(self, name: str) -> float:
        use = self._uses.get(name)
        return 0.0 if use is None else use.counted - use.error
