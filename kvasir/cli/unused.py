"""Flags of other servers that mean nothing here: hidden, accepted, and answered with a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvasir.config.options import describe
from kvasir.offline.arguments import UNUSED, unused_warnings

Command = TypeVar("Command", bound=Callable[..., Any])
NAMES = tuple(name for name in UNUSED if name not in {info.name for info in describe()})


def with_unused(command: Command) -> Command:
    """Adds them all; those that are on or off take no value."""
    for name in NAMES:
        flag = "--" + name.replace("_", "-")
        is_flag = any(isinstance(value, bool) for value in UNUSED[name].silent)
        decl = f"{flag}/--no-{flag[2:]}" if is_flag else flag
        command = click.option(decl, name, default=None, hidden=True)(command)
    return command


def take_unused(values: dict[str, Any]) -> tuple[str, ...]:
    """Moves them out of ``values``; a warning for each that asks for something."""
    given = {name: _read(values.pop(name, None)) for name in NAMES}
    return unused_warnings(given)


def _read(value: str | bool | None) -> object:
    """Numbers are written as text here; one that is too long for any field stays text."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        return int(value)
    return value
