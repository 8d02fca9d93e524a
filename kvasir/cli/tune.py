"""``kvasir tune``: which kernels are fastest here for a model."""

from __future__ import annotations

import sys
from typing import Any

import click

from kvasir.cli.options import take, with_options
from kvasir.cli.startup import interruptible
from kvasir.cli.terminal import show
from kvasir.config.options import EngineOptions


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Most time to take.",
)
@click.option("--json", "as_json", is_flag=True, help="The numbers, for programs.")
@with_options(EngineOptions, skip=("enable_prefix_caching", "seed", "served_model_name", "tuning"))
def tune(minutes: float, as_json: bool, **values: Any) -> None:
    """Measure all variants of MODEL's kernels on this machine and keep the fastest for its next
    starts. Answers stay the same, bit for bit."""
    from kvasir.bench.tune import tune_model
    from kvasir.cli.tune_text import tune_json, tune_text

    options = take(EngineOptions, values)
    interruptible()
    found = tune_model(options, minutes)
    show(tune_json(found) if as_json else tune_text(found), sys.stdout)
