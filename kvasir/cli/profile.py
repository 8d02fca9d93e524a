"""``kvasir profile``: what bounds a model here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kvasir.cli.options import take, with_options
from kvasir.cli.startup import interruptible
from kvasir.cli.terminal import show
from kvasir.config.options import EngineOptions


@click.command()
@click.option("--load", is_flag=True, help="Also with more and more requests at a time.")
@click.option("--ops", is_flag=True, help="Also the time of each kind of op in their steps.")
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Requests of the batch.",
)
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Positions that a decoded token attends to.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of a typical step of each kind, for chrome://tracing and Perfetto.",
)
@click.option("--json", "as_json", is_flag=True, help="The numbers, for programs.")
@with_options(EngineOptions, skip=("enable_prefix_caching", "seed", "served_model_name"))
def profile(
    load: bool,
    ops: bool,
    rows: int,
    context: int,
    trace: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """What bounds MODEL on this machine: memory, arithmetic, or neither; and what would help."""
    from kvasir.bench.profile import profile_model
    from kvasir.cli.profile_text import profile_json, profile_text, profile_trace

    options = replace(take(EngineOptions, values), enable_prefix_caching=False)
    interruptible()
    found = profile_model(options, with_load=load, n_rows=rows, context=context)
    if trace is not None:
        trace.write_bytes(profile_trace(found))
    show(profile_json(found) if as_json else profile_text(found, with_ops=ops), sys.stdout)
