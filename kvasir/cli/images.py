"""Images of the command line, as parts of a message."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kvasir.cli.options import Command
from kvasir.core.errors import RequestError

Message = dict[str, Any]
"""{"role": …, "content": text, or a list of parts}"""


def with_images(command: Command) -> Command:
    """Adds the option."""
    decorate: Callable[[Command], Command] = click.option(
        "--image",
        "images",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Image file in front of the first message; may be repeated.",
    )
    return decorate(command)


def spoken(text: str, images: Sequence[Path] = ()) -> Message:
    """A user's message. Raises RequestError for a file that cannot be read."""
    if not images:
        return {"role": "user", "content": text}
    parts: list[Message] = [_part(path) for path in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def _part(path: Path) -> Message:
    try:
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}: give --image a file") from None
    return {"type": "image_url", "image_url": {"url": f"data:image/any;base64,{data}"}}
