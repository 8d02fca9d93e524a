"""``kvasir advise``: which format of a model to take for a load."""

from __future__ import annotations

import sys
from typing import Any

import click

from kvasir.cli.options import take, with_options
from kvasir.cli.startup import interruptible
from kvasir.cli.terminal import show
from kvasir.config.options import EngineOptions, describe
from kvasir.core.errors import ConfigError

_TAKEN = (
    *("model", "dtype", "kv_cache_dtype", "threads", "cpu_affinity", "numa", "huge_pages", "isa"),
)
"""Of the options of an engine, those that bear on the answer."""
_SKIPPED = tuple(x.name for x in describe(EngineOptions) if x.name not in _TAKEN)


@click.command()
@click.option("--memory", metavar="SIZE", help="That it may take; default: what is free here.")
@click.option(
    "--batch",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Requests at a time.",
)
@click.option(
    "--prompt", type=click.IntRange(1), default=512, show_default=True, help="Tokens of a prompt."
)
@click.option(
    "--output", type=click.IntRange(1), default=128, show_default=True, help="Tokens of an answer."
)
@click.option("--formats", metavar="A,B", help="Beginnings of names; default: all.")
@click.option("--text", help="Measure divergence, on a file of text or self: makes each format.")
@click.option("--chunks", type=click.IntRange(2), help="Of the text; default: as evaluate.")
@click.option("--require", multiple=True, help="Such as 'kld<=0.02', with --text.")
@click.option("--json", "as_json", is_flag=True, help="The numbers, for programs.")
@with_options(EngineOptions, skip=_SKIPPED)
def advise(formats: str | None, as_json: bool, **values: Any) -> None:
    """Which format of MODEL to take here: each one's speed for a load, measured on this machine
    with MODEL's own shapes, its memory, and with --text how far it is from MODEL."""
    from kvasir.bench.advise import advise as advised
    from kvasir.bench.candidates import candidates, named
    from kvasir.bench.planned import opened
    from kvasir.cli.advise_text import advice_json, advice_text

    options = take(EngineOptions, own := dict(values))
    asked = _asked(own)
    model = opened(options)
    interruptible()
    found = named(candidates(model), formats)
    answers = advised(model, found, asked, options, _progress())
    show(advice_json(asked, answers) if as_json else advice_text(asked, answers), sys.stdout)


def _asked(values: dict[str, Any]) -> Any:
    """Raises ConfigError."""
    from kvasir.bench.advise import AskedAdvice
    from kvasir.bench.pretend_times import RequestLoad
    from kvasir.config.sizes import parse_size
    from kvasir.evaluation.gates import parse_gate

    gates = tuple(parse_gate(x) for x in values["require"])
    if gates and values["text"] is None:
        raise ConfigError("--require is of --text: give a file of text to measure it on, or self")
    memory = values["memory"]
    room = None if memory is None else parse_size(memory, "--memory")
    load = RequestLoad(values["batch"], values["prompt"], values["output"])
    return AskedAdvice(load, room, values["text"], values["chunks"], gates)


def _progress() -> Any:
    """A line on a terminal's standard error, written over by the next."""

    def told(name: str) -> None:
        if sys.stderr.isatty():
            show(f"\r\x1b[Kmeasuring {name}", sys.stderr)

    return told
