"""``kvasir keys``: the API keys of a server, in a file."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click
import msgspec

from kvasir.cli.terminal import show
from kvasir.core.errors import ConfigError
from kvasir.serve.keys.key import (
    DEFAULT_SCOPES,
    SCOPES,
    Key,
    create,
    described,
    revoke,
    rotate,
)
from kvasir.serve.keys.keyfile import KeyFile

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def keys() -> None:
    """Make and end API keys. A running server reads the file again on SIGHUP."""


def _with_file(command: Command) -> Command:
    return click.option(
        "--api-key-file",
        "path",
        required=True,
        envvar="KVASIR_API_KEY_FILE",
        help="The file, as kvasir serve is given it.",
    )(command)


@keys.command(name="create")
@click.argument("id")
@_with_file
@click.option(
    "--scopes",
    default=",".join(DEFAULT_SCOPES),
    show_default=True,
    help=f"Of {', '.join(SCOPES)}, comma-separated.",
)
@click.option("--expires-in", help="When it ends, such as 90d, 12h or 30m; default: never.")
@click.option("--requests-per-minute", type=int, help="More get a 429.")
@click.option("--concurrency", type=int, help="Requests answered at a time; more get a 429.")
@click.option("--max-n", "n", type=int, help="Choices of one request, over all its prompts.")
@click.option("--max-prompt-tokens", "prompt_tokens", type=int, help="Of one request's prompts.")
@click.option("--classes", help="Of realtime, standard, batch, comma-separated; default: all.")
def create_command(
    id: str, path: str, scopes: str, expires_in: str | None, classes: str | None, **limits: Any
) -> None:
    """Make a key called ID, and print its secret: it is shown this once."""
    now = int(time.time())
    written = {
        "id": id,
        "scopes": _words(scopes),
        "secrets": [],
        "created": now,
        "expires": None if expires_in is None else now + _seconds(expires_in),
        "limits": {**limits, "classes": None if classes is None else _words(classes)},
    }
    try:
        made = msgspec.convert(written, Key)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the key cannot be made: {error}") from None
    _say(KeyFile(path).edit(partial(create, made=made)))


@keys.command(name="list")
@_with_file
@click.option("--json", "as_json", is_flag=True, help="All of them, as the admin route has it.")
def list_command(path: str, as_json: bool) -> None:
    """Show the keys, without their secrets."""
    now, found = time.time(), KeyFile(path).read().values()
    if as_json:
        shown = [described(key, now) for key in found]
        _say(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
        return
    for key in found:
        scopes = ",".join(key.scopes)
        _say(f"{key.id:<24} {key.state(now):<8} {scopes:<24} {_limits(key)}".rstrip())


@keys.command(name="rotate")
@click.argument("id")
@_with_file
@click.option(
    "--overlap", default="0s", show_default=True, help="How long the older secret still holds."
)
def rotate_command(id: str, path: str, overlap: str) -> None:
    """Print another secret for the key ID."""
    now, seconds = int(time.time()), _seconds(overlap)
    _say(KeyFile(path).edit(partial(rotate, key_id=id, overlap=seconds, now=now)))


@keys.command(name="revoke")
@click.argument("id")
@_with_file
def revoke_command(id: str, path: str) -> None:
    """End the key ID, with all its secrets."""
    KeyFile(path).edit(partial(revoke, key_id=id, now=int(time.time())))


def _say(line: str) -> None:
    show(line + "\n", sys.stdout)


def _limits(key: Key) -> str:
    found = msgspec.to_builtins(key.limits)
    if key.expires is not None:
        found["expires"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(key.expires))
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _seconds(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text.strip())
    if found is None:
        raise ConfigError(f"{text[:32]!r} is no time: write it as 30s, 15m, 12h or 90d")
    return int(found[1]) * UNITS[found[2]]
