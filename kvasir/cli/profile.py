"""``kvasir profile``: what bounds a model here."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from kvasir.cli.options import take, with_options
from kvasir.cli.startup import interruptible
from kvasir.cli.terminal import show
from kvasir.config.options import EngineOptions


@click.command()
@click.option("--load", is_flag=True, help="Also with more and more requests at a time.")
@click.option("--json", "as_json", is_flag=True, help="The numbers, for programs.")
@with_options(EngineOptions, skip=("enable_prefix_caching", "seed", "served_model_name"))
def profile(load: bool, as_json: bool, **values: Any) -> None:
    """What bounds MODEL on this machine: memory, arithmetic, or neither; and what would help."""
    from kvasir.bench.profile import profile_model
    from kvasir.cli.profile_text import profile_json, profile_text

    options = replace(take(EngineOptions, values), enable_prefix_caching=False)
    interruptible()
    found = profile_model(options, with_load=load)
    show(profile_json(found) if as_json else profile_text(found), sys.stdout)
