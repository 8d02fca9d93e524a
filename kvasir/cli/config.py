"""``kvasir config``: what the options of ``kvasir serve`` come to."""

from __future__ import annotations

import sys
from typing import Any

import click

from kvasir.cli.options import with_options
from kvasir.cli.sources import take_sources, with_file
from kvasir.cli.terminal import show
from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions


@click.command()
@with_options(EngineOptions, ServeOptions)
@with_file
@click.pass_context
def config(context: click.Context, /, **values: Any) -> None:
    """What each option of serve comes to with these arguments, and why: the line of a file, a
    variable, a flag, its default, or what MODEL and this machine made of it."""
    sources = take_sources(context, values, EngineOptions, ServeOptions)
    from kvasir.cli.config_text import config_text

    show(config_text(sources), sys.stdout)
