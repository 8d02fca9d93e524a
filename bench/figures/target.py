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

    def row(self, folder: str = "") -> str:
        """``folder``: where the results lie, as seen from the page."""
        value = self.read(load(self.result, is_timed=self.is_timed))
        met = value <= self.bound if self.is_most else value >= self.bound
        wanted = f"{'at most ' if self.is_most else ''}{self.form.format(self.bound)}"
        measured = self.form.format(value)
        link = f"[{self.result}]({folder}{self.result}.json)"
        return f"| {self.what} | {wanted} | {measured} | {link} | {'met' if met else 'missed'} |"


class Row(Protocol):
    def row(self, folder: str) -> str: ...


def table(rows: Iterable[Row], folder: str = "") -> str:
    head = ["| what | wanted | measured | result | |", "|---|--:|--:|---|---|"]
    return "\n".join([*head, *(row.row(folder) for row in rows)]) + "\n"
