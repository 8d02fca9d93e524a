"""``kvasir serve``: option names are those of ``vllm serve`` where it has them."""

from __future__ import annotations

from typing import Any

import click

from kvasir.cli.options import with_options
from kvasir.cli.sources import take_sources, with_file
from kvasir.cli.unused import take_unused, with_unused
from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions


@click.command()
@with_options(EngineOptions, ServeOptions)
@with_file
@with_unused
@click.pass_context
def serve(context: click.Context, /, **values: Any) -> int:
    """Serve MODEL over HTTP: a GGUF file, a folder, or a name of the library or the hub.

    Without it the default model is served.
    """
    sources = take_sources(context, values, EngineOptions, ServeOptions)
    settings = sources.read(EngineOptions, ServeOptions)
    for warning in (*take_unused(values), *settings.warnings):
        click.echo(f"kvasir: {warning}", err=True)
    from kvasir.cli.named import present
    from kvasir.serve.reload import OptionValues
    from kvasir.serve.server import run

    def read() -> OptionValues:
        again = sources.read(EngineOptions, ServeOptions)
        # The event loop waits for it: nothing is fetched.
        engine = present(again.of(EngineOptions), pulls=False)[0]
        return OptionValues(again.of(ServeOptions), engine)

    engine, defaults = present(settings.of(EngineOptions))
    if defaults.parameters or defaults.system or defaults.messages:
        click.echo("kvasir: what the Modelfile says of answers holds for run and chat", err=True)
    return run(settings.of(ServeOptions), engine, read=read)
