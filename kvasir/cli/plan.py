"""``kvasir plan``: what would fit, before anything is loaded."""

from __future__ import annotations

import sys
from typing import Any

import click

from kvasir.cli.options import take, with_options
from kvasir.cli.terminal import show
from kvasir.config.options import EngineOptions


@click.group()
def plan() -> None:
    """Plan memory before anything is loaded."""


@plan.command()
@with_options(EngineOptions)
def memory(**values: Any) -> None:
    """What MODEL has room for with these options, and what helps where that is too little."""
    options = take(EngineOptions, values)
    from kvasir.cli.plan_text import memory_text

    show(memory_text(options), sys.stdout)
