"""``kvasir inspect``: what a model is, what it computes, what this build and machine can do."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kvasir.cli.completion import models
from kvasir.cli.terminal import show
from kvasir.core.errors import ConfigError

STAGES = ("raw", "fused", "lowered")


@click.group()
def inspect() -> None:
    """Show a model, its program, families, formats, a timeline or the environment."""


@inspect.command()
@click.argument("model", required=False, shell_complete=models)
@click.option("--tensors", is_flag=True, help="List every tensor.")
def model(model: str | None, tensors: bool) -> None:
    """What MODEL's file says: family, sizes, formats of its tensors."""
    from kvasir.cli.inspect_text import model_text

    show(model_text(model, tensors), sys.stdout)


@inspect.command()
@click.argument("model", required=False, shell_complete=models)
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

    show(program_text(model, stage, dtype), sys.stdout)


@inspect.command()
@click.argument("model", required=False, shell_complete=models)
def template(model: str | None) -> None:
    """How MODEL writes reasoning and tool calls, and how that is known."""
    from kvasir.cli.template_text import template_text

    show(template_text(model), sys.stdout)


@inspect.command()
def formats() -> None:
    """The weight formats that can be read."""
    from kvasir.cli.inspect_text import formats_text

    show(formats_text(), sys.stdout)


@inspect.command()
def families() -> None:
    """The families of models that run: what each has, and what tests compare of it."""
    from kvasir.cli.inspect_text import families_text

    show(families_text(), sys.stdout)


@inspect.command()
@click.argument("request", required=False)
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Its key [OPENAI_API_KEY].")
@click.option(
    "--steps",
    type=click.IntRange(1, 4096),
    default=256,
    show_default=True,
    help="Last steps to show; without REQUEST.",
)
@click.option(
    "--chrome-trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the steps here for chrome://tracing or Perfetto; without REQUEST.",
)
def timeline(
    request: str | None, url: str, api_key: str | None, steps: int, chrome_trace: Path | None
) -> None:
    """The last steps of a running server, or what happened to REQUEST (chatcmpl-…, cmpl-…)."""
    from kvasir.cli.trace_command import request_timeline, step_timeline

    if request is not None and chrome_trace is not None:
        raise ConfigError("--chrome-trace shows the steps of all requests: leave REQUEST out")
    if request is not None:
        show(request_timeline(url, api_key, request), sys.stdout)
    else:
        show(step_timeline(url, api_key, steps, chrome_trace), sys.stdout)


@inspect.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Its key [OPENAI_API_KEY].")
def kv(url: str, api_key: str | None) -> None:
    """What holds the KV blocks of a running server now, and how full each request's are."""
    from kvasir.cli.trace_command import kv_cache

    show(kv_cache(url, api_key), sys.stdout)


@inspect.command()
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it here.")
def env(output: Path | None) -> None:
    """Machine, versions and KVASIR_ variables as JSON: what belongs into a bug report."""
    from kvasir.bench.report import write
    from kvasir.cli.inspect_text import environment

    write(environment(), output)
