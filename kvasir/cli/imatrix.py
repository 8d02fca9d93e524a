"""``kvasir imatrix``: what matters of each matrix, for who makes K-quants of a model."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kvasir.cli.completion import models
from kvasir.cli.startup import interruptible
from kvasir.cli.terminal import show


@click.command()
@click.argument("model", shell_complete=models)
@click.option("--calibration", default="self", show_default=True, metavar="FILE|self",
              help="Plain text, or what the model writes.")  # fmt: skip
@click.option("--calibration-chunks", type=click.IntRange(2), metavar="N",
              help="Of 512 tokens; default: 128 of a file, 16 of self.")  # fmt: skip
@click.option("--output", required=True, type=click.Path(path_type=Path), help="What is written.")
def imatrix(model: str, calibration: str, calibration_chunks: int | None, output: Path) -> None:
    """Write the importance matrix of MODEL, a GGUF file, as llama-imatrix does: kvasir quantize and
    llama-quantize take it (--imatrix)."""
    from kvasir.cli.evaluate_text import progress
    from kvasir.evaluation.imatrix import write_imatrix

    interruptible()
    told = progress(sys.stderr, "calibration: chunk")
    made = write_imatrix(model, calibration, calibration_chunks, output, told)
    lines = [f"{output}: {made.n_tensors} matrices, {made.n_chunks} chunks of {made.chunk_size}"]
    if made.unknown:
        lines.append(
            f"{len(made.unknown)} matrices are experts, of which nothing is known: "
            f"{', '.join(made.unknown[:3])}"
        )
    show("\n".join(lines) + "\n", sys.stdout)
