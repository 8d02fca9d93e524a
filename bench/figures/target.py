"""A figure that was wanted, what a result says, and whether that is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from bench.figures.results import load

Read = Callable[[dict[str, Any]], float]


@dataclass(frozen=True, slots=True)
class Target:
    """``read`` takes the figure from the result; it has to reach ``bound``, or stay below it."""

    what: str
    result: str
    read: Read
    bound: float
    form: str = "{:.2f}x"
    is_most: bool = False
    is_timed: bool = True
    """False: a count, bytes or CPU time, which others on the machine do not make better."""

    def value(self) -> float:
        return self.read(load(self.result, is_timed=self.is_timed))

    def measured(self) -> str:
        return self.form.format(self.value())

    def wanted(self) -> str:
        return f"{'at most ' if self.is_most else ''}{self.form.format(self.bound)}"

    def is_met(self) -> bool:
        value = self.value()
        return value <= self.bound if self.is_most else value >= self.bound

    def row(self, folder: str = "") -> str:
        """``folder``: where the results lie, as seen from the page."""
        link = f"[{self.result}]({folder}{self.result}.json)"
        met = "met" if self.is_met() else "missed"
        return f"| {self.what} | {self.wanted()} | {self.measured()} | {link} | {met} |"


class Row(Protocol):
    def row(self, folder: str) -> str: ...


def table(rows: Iterable[Row], folder: str = "") -> str:
    head = ["| what | wanted | measured | result | |", "|---|--:|--:|---|---|"]
    return "\n".join([*head, *(row.row(folder) for row in rows)]) + "\n"
