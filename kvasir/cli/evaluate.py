"""``kvasir evaluate``: how good a model is, and how far from another."""

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
    *("packed_cache", "packed_cache_size"),
)
"""Of the options of an engine, those that this needs; the others follow from the text."""
_SKIPPED = tuple(x.name for x in describe(EngineOptions) if x.name not in _TAKEN)


@click.command()
@click.option("--reference", help="A model with the same tokenizer to compare with.")
@click.option("--text", help="A file of plain text, or self: texts that the model writes.")
@click.option(
    "--chunk-size", default=512, show_default=True, help="Tokens of a chunk; half are scored."
)
@click.option("--chunks", type=int, help="Chunks; default: all of the text, 16 of self.")
@click.option("--seed", default=0, show_default=True, help="Of --text self.")
@click.option("--require", multiple=True, help="Such as 'kld<=0.02'; else the status is 1.")
@click.option("--json", "as_json", is_flag=True, help="The numbers, for programs.")
@with_options(EngineOptions, skip=_SKIPPED)
def evaluate(
    reference: str | None,
    text: str | None,
    chunk_size: int,
    chunks: int | None,
    seed: int,
    require: tuple[str, ...],
    as_json: bool,
    **values: Any,
) -> None:
    """Perplexity of MODEL, and its divergence from a reference."""
    from kvasir.cli.evaluate_text import figures_json, figures_text, progress
    from kvasir.evaluation.evaluate import Evaluation
    from kvasir.evaluation.evaluate import evaluate as evaluated
    from kvasir.evaluation.gates import UnmetError, parse_gate

    gates = [parse_gate(x) for x in require]
    paired = [x.name for x in gates if x.is_paired]
    if paired and reference is None:
        raise ConfigError(f"--require {paired[0]} compares with a model: give --reference")
    if text is None:
        raise ConfigError(
            "no text to evaluate on, and none is fetched: give --text FILE with some 100 kB of "
            "plain text in the model's language, or --text self"
        )
    options = take(EngineOptions, values)
    interruptible()
    asked = Evaluation(options, text, reference, chunk_size, chunks, seed)
    figures = evaluated(asked, progress(sys.stderr, "chunk"))
    show(figures_json(figures) if as_json else figures_text(figures), sys.stdout)
    faults = [fault for x in gates if (fault := x.fault(figures))]
    if faults:
        raise UnmetError("; ".join(faults))
