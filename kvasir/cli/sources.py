"""From where ``kvasir serve`` has its options: file, environment, command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from kvasir.cli.options import NAMED_MODEL, named_model
from kvasir.config.options import describe
from kvasir.config.settings import Sources

Command = TypeVar("Command", bound=Callable[..., Any])
CONFIG = "config"


def with_file(command: Command) -> Command:
    """Adds the option that names a file of options."""
    return click.option(
        "--config",
        CONFIG,
        envvar="KVASIR_CONFIG",
        type=click.Path(dir_okay=False, path_type=Path),
        help="TOML file of options, one a line: port = 8000; default: KVASIR_CONFIG, else none. "
        "KVASIR_PORT in the environment goes before it, --port before both.",
    )(command)


def take_sources(context: click.Context, values: dict[str, Any], *options_types: type) -> Sources:
    """Moves the options of ``options_types`` and the file's name out of ``values``."""
    names = [info.name for each in options_types for info in describe(each)]
    flags: Mapping[str, object] = {
        name: values[name]
        for name in names
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    named = named_model(flags.get("model"), values.pop(NAMED_MODEL, None))
    if named is not None:
        flags = {**flags, "model": named}
    for name in names:
        values.pop(name)
    return Sources(values.pop(CONFIG), os.environ, flags)
