"""``kvasir serve``: option names are those of ``vllm serve`` where it has them."""

from __future__ import annotations

from typing import Any

import click

from kvasir.cli.options import take, with_options
from kvasir.cli.unused import take_unused, with_unused
from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions


@click.command()
@with_options(EngineOptions, ServeOptions)
@with_unused
def serve(**values: Any) -> int:
    """Serve MODEL over HTTP: a GGUF file or a Hugging Face folder; without it the default model."""
    for warning in take_unused(values):
        click.echo(f"kvasir: {warning}", err=True)
    engine_options = take(EngineOptions, values)
    serve_options = take(ServeOptions, values)
    from kvasir.serve.server import run

    return run(serve_options, engine_options)
