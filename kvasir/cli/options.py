"""Command line options, derived from the option classes of ``kvasir.config``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kvasir.cli.completion import models
from kvasir.config.options import OptionInfo, check, describe
from kvasir.core.errors import ConfigError

Options = TypeVar("Options")
Command = TypeVar("Command", bound=Callable[..., Any])
NAMED_MODEL = "named_model"


def with_options(*options_types: type, skip: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Adds all options of ``options_types`` but ``skip``; ``model`` becomes an argument, and vLLM's
    option beside it."""

    def decorate(command: Command) -> Command:
        for options_type in reversed(options_types):
            for info in reversed(describe(options_type)):
                if info.name not in skip:
                    command = _parameter(info)(command)
        return command

    return decorate


def take(options_type: type[Options], values: dict[str, Any]) -> Options:
    """Moves the options of ``options_type`` out of ``values``; absent ones have their default.

    Raises ConfigError on a value out of bounds.
    """
    found = {info.name: values.pop(info.name, info.default) for info in describe(options_type)}
    if "model" in found:
        found["model"] = named_model(found["model"], values.pop(NAMED_MODEL, None))
    options = options_type(**found)
    check(options)
    return options


def named_model(argument: object, option: object) -> object:
    """MODEL, said in one of two ways. Raises ConfigError when both are."""
    if argument is not None and option is not None:
        raise ConfigError(f"MODEL is {argument} and --model {option}: give one of them")
    return argument if option is None else option


def _parameter(info: OptionInfo) -> Callable[[Command], Command]:
    if info.name == "model":
        return _model
    flags = (info.flag, *map(_flag, info.aliases))
    return click.option(
        *(f"{flag}/--no-{flag[2:]}" if info.kind == "flag" else flag for flag in flags),
        info.name,
        type=_type(info),
        default=info.default,
        show_default=info.default is not None,
        help=info.help,
    )


def _flag(alias: str) -> str:
    return alias if alias.startswith("-") else "--" + alias.replace("_", "-")


def _model(command: Command) -> Command:
    command = click.option("--model", NAMED_MODEL, help="MODEL, as an option.")(command)
    return click.argument("model", required=False, shell_complete=models)(command)


class _BackendName(click.ParamType[str]):
    """Its table, which brings the native core, is imported by those who need it: the default, which
    click converts, too, is taken as it is. To look it up was 0.2 s of each start."""

    name = "backend"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self._names().get_metavar(param, ctx) or ""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        is_default = param is not None and value == param.default
        return value if is_default else self._names().convert(value, param, ctx)

    def _names(self) -> click.Choice[str]:
        from kvasir.exec.backends import BACKENDS

        return click.Choice(tuple(BACKENDS))


def _type(info: OptionInfo) -> Any:
    if info.kind == "backend":
        return _BackendName()
    if info.kind == "choice":
        return click.Choice(info.choices)
    if info.kind == "int":
        return click.IntRange(min=info.minimum)
    if info.kind == "share":
        return float
    return bool if info.kind == "flag" else str
