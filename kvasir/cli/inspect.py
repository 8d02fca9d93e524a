"""``kvasir inspect``: what a model is, what it computes, what this build and machine can do."""

from __future__ import annotations

import sys
from pathlib import Path

import click

STAGES = ("raw", "fused", "lowered")


@click.group()
def inspect() -> None:
    """Show a model, its program, the formats or the environment."""


@inspect.command()
@click.argument("model", required=False)
@click.option("--tensors", is_flag=True, help="List every tensor.")
def model(model: str | None, tensors: bool) -> None:
    """What MODEL's file says: family, sizes, formats of its tensors."""
    from kvasir.cli.inspect_text import model_text

    sys.stdout.write(model_text(model, tensors))


@inspect.command()
@click.argument("model", required=False)
@click.option(
    "--stage",
    type=click.Choice(STAGES),
    default="lowered",
    show_default=True,
    help="As built, after fusion, or with the layouts that the cpu executor runs.",
)
@click.option(
    "--dtype",
    type=click.Choice(("auto", "float32", "bfloat16")),
    default="auto",
    show_default=True,
    help="Arithmetic that decides the layouts of the last stage.",
)
def program(model: str | None, stage: str, dtype: str) -> None:
    """What MODEL computes in one step."""
    from kvasir.cli.inspect_text import program_text

    sys.stdout.write(program_text(model, stage, dtype))


@inspect.command()
def formats() -> None:
    """The weight formats that can be read."""
    from kvasir.cli.inspect_text import formats_text

    sys.stdout.write(formats_text())


@inspect.command()
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it here.")
def env(output: Path | None) -> None:
    """Machine, versions and KVASIR_ variables as JSON: what belongs into a bug report."""
    from kvasir.bench.report import write
    from kvasir.cli.inspect_text import environment

    write(environment(), output)
