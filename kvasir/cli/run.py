"""``kvasir run``: one prompt, the answer on standard output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvasir.cli.images import Message, spoken, with_images
from kvasir.cli.options import take, with_options
from kvasir.cli.sampling import given, take_sampling, with_defaults, with_sampling
from kvasir.cli.terminal import show
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.library.stored import Defaults


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[MODEL] PROMPT")
@click.option("--model", "named_model", help="MODEL, as an option.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as it is, without the chat template.")
@click.option("--system", help="System message of the chat.")
@with_images
@with_sampling(temperature=0.0)
@with_options(EngineOptions, skip=("model", "seed"))
def run(
    words: tuple[str, ...],
    named_model: str | None,
    raw: bool,
    system: str | None,
    images: tuple[Path, ...],
    **values: Any,
) -> None:
    """Answer PROMPT with MODEL (default: a small one); PROMPT "-" reads standard input."""
    values["model"], prompt = _split(words if named_model is None else (named_model, *words))
    for name, value in (("--system", system), ("--image", images)):
        if raw and value:
            raise ConfigError(f"{name} belongs to the chat template, which --raw leaves out")
    spoken("", images)  # before a model is loaded
    said = given()
    params = take_sampling(values)
    from kvasir.cli.named import present
    from kvasir.cli.start_local import start_local

    options, defaults = present(take(EngineOptions, values))
    params = with_defaults(params, defaults, said)
    model = start_local(options)
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
        messages = _before(system, defaults)
        messages.append(spoken(text, images))
        for piece in model.complete(text, params) if raw else model.chat(messages, params):
            show(piece, sys.stdout)
        sys.stdout.write("\n")
    finally:
        model.close()


def _before(system: str | None, defaults: Defaults) -> list[Message]:
    """What is said before the prompt."""
    text = system or defaults.system
    messages: list[Message] = [{"role": "system", "content": text}] if text else []
    return messages + [{"role": role, "content": said} for role, said in defaults.messages]


def _split(words: tuple[str, ...]) -> tuple[str | None, str]:
    """(model or None, prompt)."""
    if len(words) > 2:
        raise ConfigError(f"{len(words)} arguments, expected [MODEL] PROMPT: put PROMPT in quotes")
    return (None, words[0]) if len(words) == 1 else (words[0], words[1])
