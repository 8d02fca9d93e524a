"""Keys of ``kvasir top``: what each makes of the view."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator, Sequence

import msgspec

from kvasir.cli.top_text import ORDERS

HELP = "s sorts, ↑ ↓ choose a request, Enter says why it takes long, q ends"
UP, DOWN, ENTER = ("\x1b[A", "k"), ("\x1b[B", "j"), ("\r", "\n")
BACK = ("\x1b", "b")


class TopView(msgspec.Struct, frozen=True):
    order: str = "blocks"
    chosen: str = ""
    """Id of a request; empty: none."""
    explains: bool = False
    """Whether it is told why it takes long, in the place of the requests."""
    ends: bool = False


def pressed(view: TopView, key: str, ids: Sequence[str]) -> TopView:
    """The view behind ``key``. ``ids``: of the requests, as they are shown."""
    change = msgspec.structs.replace
    if key == "q":
        return change(view, ends=True)
    if key == "s":
        names = list(ORDERS)
        return change(view, order=names[(names.index(view.order) + 1) % len(names)])
    if key in BACK:
        return change(view, explains=False)
    if key in ENTER:
        return change(view, explains=bool(view.chosen) and not view.explains)
    if key in (*UP, *DOWN) and ids:
        at = ids.index(view.chosen) if view.chosen in ids else -1
        step = 1 if key in DOWN else -1
        return change(view, chosen=ids[max(0, min(len(ids) - 1, at + step))])
    return view


@contextlib.contextmanager
def keys() -> Iterator[TypedKeys]:
    """The terminal gives each key at once, without an echo; as it was behind the block."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield TypedKeys(sys.stdin.fileno())
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class TypedKeys:
    def __init__(self, file: int) -> None:
        self._file = file

    def wait(self, seconds: float) -> str:
        """The next key, an arrow as its sequence; empty when none comes so soon."""
        ready, _, _ = select.select([self._file], [], [], seconds)
        return os.read(self._file, 8).decode("utf-8", "replace") if ready else ""
