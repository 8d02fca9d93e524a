"""``kvasir quantize``: a smaller model of a model."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote

import click

from kvasir.cli.completion import models
from kvasir.cli.startup import interruptible
from kvasir.cli.terminal import show


@click.command()
@click.argument("model", shell_complete=models)
@click.option("--method", required=True, help="rtn, int8, fp8, gguf:Q8_0, gguf:Q4_0, gguf:Q4_1.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="What is written.")
@click.option("--bits", type=int, help="Of rtn: 4 or 8; default: 4.")
@click.option("--group-size", type=int, help="Weights that share a scale, of rtn; default: 128.")
@click.option("--sym/--no-sym", default=None, help="Codes around 0, or with zeros, of rtn.")
@click.option("--lm-head", is_flag=True, help="The language head, too, where it is its own.")
def quantize(
    model: str,
    method: str,
    output: Path,
    bits: int | None,
    group_size: int | None,
    sym: bool | None,
    lm_head: bool,
) -> None:
    """Make a smaller model of MODEL, by rounding, without texts: the linears become codes and
    scales; embeddings, norms, routers and the language head stay as they are."""
    from kvasir.cli.evaluate_text import progress
    from kvasir.quantize.methods import method_named
    from kvasir.quantize.quantize import quantize as quantized

    how = method_named(method, bits, group_size, sym)
    interruptible()
    told = progress(sys.stderr, "tensor")
    made = quantized(model, how, output, with_head=lm_head, told=told)
    lines = [
        f"{made.path}: {made.n_quantized} matrices in {made.method}; "
        f"{made.n_bytes / 1e6:.1f} MB of tensors in place of {made.source_bytes / 1e6:.1f} MB "
        f"({made.n_bytes / made.source_bytes:.1%})"
    ]
    if made.narrow:
        names = ", ".join(made.narrow[:3]) + (", ..." if len(made.narrow) > 3 else "")
        lines.append(
            f"{len(made.narrow)} matrices stayed as they were, their rows are no multiple of 32: "
            f"{names}"
        )
    paths = quote(made.path), quote(model)
    compare = "kvasir evaluate {} --reference {} --text self".format(*paths)
    lines.append(f"how far it is from its origin: {compare}")
    show("\n".join(lines) + "\n", sys.stdout)
