"""``kvasir doctor``: what is wrong, what it costs, and the cure."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kvasir.cli.completion import models
from kvasir.cli.terminal import show


@click.command()
@click.argument("model", required=False, shell_complete=models)
@click.option("--json", "as_json", is_flag=True, help="What is found, for programs.")
@click.option("--full", is_flag=True, help="Hash files of any size.")
@click.option("--network", is_flag=True, help="Ask the hub although no model is wanted from it.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what belongs into a bug report here, without secrets.",
)
def doctor(model: str | None, as_json: bool, full: bool, network: bool, report: Path | None) -> int:
    """Look for what is wrong with this machine, the installation and MODEL.

    The status is 1 where something cannot work until it is mended.
    """
    from kvasir.cli.doctor_text import found_json, found_text, write_report
    from kvasir.config.env import read_env
    from kvasir.doctor.finding import Scene
    from kvasir.doctor.table import examine

    scene = Scene(model, cache=read_env().cache, reads_all=full, asks=network)
    found = list(examine(scene))
    if report is not None:
        write_report(report, scene, found)
        show(f"{report} is written: look at it before you send it\n", sys.stderr)
    show(found_json(found) if as_json else found_text(found), sys.stdout)
    return int(any(each.finding.level == "blocks" for each in found))
