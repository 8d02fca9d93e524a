"""The sampling options that ``run`` and ``chat`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from kvasir.cli.options import Command
from kvasir.core.params import SAMPLERS, DrawParams
from kvasir.library.stored import Defaults
from kvasir.validation.sampling import Field, SamplingParams, fields_of

DRAWING = fields_of(DrawParams)
NAMES = (*DrawParams.__struct_fields__, "max_tokens", "seed")
LISTS = ("stop", "stop_regex", "bad_words", "samplers")
"""Options that may be repeated."""


def with_sampling(temperature: float) -> Callable[[Command], Command]:
    """Adds the options; ``temperature`` is the command's default."""

    def decorate(command: Command) -> Command:
        for option in reversed(_options(temperature)):
            command = option(command)
        return command

    return decorate


def _options(temperature: float) -> list[Callable[[Any], Any]]:
    defaults = {"temperature": temperature}
    return [
        *(_number(field, defaults.get(field.name, field.default)) for field in DRAWING),
        click.option("--max-tokens", type=int, help="Default: as many as the context allows."),
        click.option(
            "--seed", type=int, help="Equal seeds give equal answers; default: a new one."
        ),
        click.option("--stop", multiple=True, help="Text that ends the answer; may be repeated."),
        click.option("--stop-regex", multiple=True, help="The same as a regular expression."),
        click.option("--bad-words", multiple=True, help="Text not to say; may be repeated."),
        click.option(
            "--samplers",
            multiple=True,
            type=click.Choice(SAMPLERS),
            help="Stages of a draw in their order, repeated; those left out do nothing.",
        ),
    ]


def _number(field: Field, default: float) -> Callable[[Any], Any]:
    flag = "--" + field.name.replace("_", "-")
    return click.option(flag, type=field.kind, default=default, show_default=True, help=field.help)


def take_sampling(values: dict[str, Any]) -> SamplingParams:
    """Moves the sampling options out of ``values``."""
    chosen = {name: values.pop(name) for name in NAMES}
    chosen |= {name: list(values.pop(name)) or None for name in LISTS}
    return SamplingParams(**chosen)


def given() -> frozenset[str]:
    """Names of the options that the command line of this command names."""
    context = click.get_current_context()
    names = context.params
    said = ParameterSource.COMMANDLINE
    return frozenset(name for name in names if context.get_parameter_source(name) is said)


def with_defaults(
    params: SamplingParams, defaults: Defaults, said: frozenset[str]
) -> SamplingParams:
    """``params``, with what a Modelfile says where the command line says nothing."""
    changed = {name: value for name, value in defaults.parameters.items() if name not in said}
    return msgspec.structs.replace(params, **changed) if changed else params
