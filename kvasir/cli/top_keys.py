"""Keys of ``kvasir top``: what each makes of the view, which follows a server."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence

import msgspec

from kvasir.cli.top_text import ORDERS, ServerLook, ServerWatch, as_text, shown_ids

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


def follow(
    watch: ServerWatch, before: ServerLook, now: ServerLook, order: str, interval: float
) -> None:
    """On the whole screen, until q or Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    view = TopView(order)
    with keys() as typed, Live(screen=True, auto_refresh=False) as live:
        due = time.monotonic() + interval
        while not view.ends:
            told = watch.why(view.chosen) if view.explains else ""
            text = as_text(before, now, view.order, view.chosen, told)
            live.update(Text(text + HELP), refresh=True)
            key = typed.wait(max(0.0, due - time.monotonic()))
            if key:
                view = pressed(view, key, shown_ids(now, view.order))
            else:
                before, now = now, watch.look()
                due = time.monotonic() + interval
