"""The sampling options that ``run`` and ``chat`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kvasir.cli.options import Command
from kvasir.core.params import SamplingParams

NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "max_tokens",
    "seed",
    "stop",
)


def with_sampling(temperature: float) -> Callable[[Command], Command]:
    """Adds the options; ``temperature`` is the command's default."""

    def decorate(command: Command) -> Command:
        for option in reversed(_options(temperature)):
            command = option(command)
        return command

    return decorate


def _options(temperature: float) -> list[Callable[[Any], Any]]:
    return [
        _number("--temperature", temperature, "0 is greedy."),
        _number("--top-p", 1.0, "Keep the likeliest tokens that reach this probability together."),
        _number("--top-k", 0, "Keep the k likeliest tokens; 0 keeps all."),
        _number("--min-p", 0.0, "Keep tokens at least this likely relative to the likeliest."),
        _number("--repetition-penalty", 1.0, "Above 1, seen tokens become less likely."),
        click.option("--max-tokens", type=int, help="Default: as many as the context allows."),
        click.option(
            "--seed", type=int, help="Equal seeds give equal answers; default: a new one."
        ),
        click.option("--stop", multiple=True, help="Text that ends the answer; may be repeated."),
    ]


def _number(flag: str, default: float, text: str) -> Callable[[Any], Any]:
    return click.option(flag, type=type(default), default=default, show_default=True, help=text)


def take_sampling(values: dict[str, Any]) -> SamplingParams:
    """Moves the sampling options out of ``values``."""
    chosen = {name: values.pop(name) for name in NAMES}
    return SamplingParams(**{**chosen, "stop": list(chosen["stop"]) or None})
