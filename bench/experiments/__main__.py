"""``python -m bench.experiments``: claims of the literature, measured on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from bench.experiments.base import Settings
from bench.experiments.registry import listing, select
from bench.experiments.run import run_experiment, write_table
from kvasir.cli.main import run_command
from kvasir.cli.options import take, with_options
from kvasir.cli.startup import interruptible
from kvasir.config.options import EngineOptions, describe

GIVEN = ("dtype", "kv_memory", "threads", "isa", "async_scheduling")
DECIDED = tuple(info.name for info in describe(EngineOptions) if info.name not in GIVEN)
"""Options that the experiments decide themselves; the model is a flag here, names come first."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "lists", is_flag=True, help="Only say which there are.")
@click.option("--quick", is_flag=True, help="Tiny sizes: shows that it works, measures nothing.")
@click.option("--model", help="GGUF file or Hugging Face folder; default: the default model.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="experiments",
    show_default=True,
    help="Folder for NAME.json, NAME.svg and README.md with a row for each.",
)
@with_options(EngineOptions, skip=DECIDED)
def experiments(
    names: tuple[str, ...], lists: bool, quick: bool, output: Path, **values: Any
) -> None:
    """Run experiments, all without NAME: what the source claims, and what is measured here."""
    if lists:
        sys.stdout.write(listing())
        return
    settings = Settings(options=take(EngineOptions, values), quick=quick)
    interruptible()
    failed: list[str] = []
    for experiment in select(names):
        _say(f"{experiment.name}: {experiment.title}, about {experiment.seconds} s")
        document = run_experiment(experiment, settings, output, _say)
        print(f"{experiment.name}: {document['row']['measured']}")
        results = document["results"]
        if results["identical"] is False:
            failed.append(f"{experiment.name}: its arms gave different tokens")
        if not results["met"] and not quick:
            failed.append(f"{experiment.name}: below its target, {experiment.target}")
        if document["disturbed"]:
            _say("other processes took more than 10 % of the machine: repeat it")
    write_table(output)
    if failed:
        raise SystemExit("kvasir: " + "\nkvasir: ".join(failed))


def _say(text: str) -> None:
    print(f"kvasir: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:], experiments, "python -m bench.experiments"))
