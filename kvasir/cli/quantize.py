"""``kvasir quantize``: a smaller model of a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import click

from kvasir.cli.completion import models
from kvasir.cli.startup import interruptible
from kvasir.cli.terminal import show
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError


@click.command()
@click.argument("model", shell_complete=models)
@click.option(
    "--method",
    required=True,
    help="rtn, gptq, awq, int8, smoothquant, fp8, fp8-block, nf4, nvfp4, mxfp4, repack, "
    "gguf:Q4_K_M, gguf:Q8_0 and the like.",
)
@click.option("--output", required=True, type=click.Path(path_type=Path), help="What is written.")
@click.option("--bits", type=int, help="Of rtn, gptq and awq: 4 or 8; default: 4.")
@click.option("--group-size", type=int, help="Weights that share a scale, of these; default: 128.")
@click.option("--sym/--no-sym", default=None, help="Codes around 0, or with zeros, of these.")
@click.option("--container", metavar="NAME",
              help="Of these and repack: compressed-tensors, gptq, gptq_v2, awq.")  # fmt: skip
@click.option("--calibration", metavar="FILE|self",
              help="Text that gptq, awq, smoothquant and K-quants choose by.")  # fmt: skip
@click.option("--calibration-chunks", type=click.IntRange(2), metavar="N",
              help="Of 512 tokens; default: 128 of a file, 16 of self.")  # fmt: skip
@click.option("--imatrix", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Of K-quants, in place of a text: llama.cpp's GGUF file.")  # fmt: skip
@click.option("--tensor-type", multiple=True, metavar="PART=FORMAT",
              help="Of GGUF: tensors whose names have PART, as attn_v=Q6_K.")  # fmt: skip
@click.option("--require", multiple=True, metavar="FIGURE<=NUMBER",
              help="What evaluate must find, such as kld<=0.02, or nothing is kept.")  # fmt: skip
@click.option("--lm-head", is_flag=True, help="The language head, too, where it is its own.")
def quantize(model: str, method: str, output: Path, lm_head: bool, **options: Any) -> None:
    """Make a smaller model of MODEL, by rounding, or by what a text asks for: the linears become
    codes and scales; embeddings, norms, routers and the language head stay as they are (K-quants
    take embeddings and head, too)."""
    from kvasir.cli.evaluate_text import progress
    from kvasir.quantize.methods import method_named
    from kvasir.quantize.quantize import quantize as quantized

    values = (options[x] for x in ("bits", "group_size", "sym", "tensor_type", "container"))
    how = method_named(method, *values)
    interruptible()
    told = progress(sys.stderr, "tensor")
    calibrate = _imatrix(how, options) if options["imatrix"] else _calibration(how, options)
    judge = _judge(model, options["require"])
    more: dict[str, Any] = {"with_head": lm_head, "calibrate": calibrate, "judge": judge}
    made = quantized(model, how, output, told=told, **more)
    lines = [
        f"{made.path}: {made.n_quantized} matrices in {made.method}; "
        f"{made.n_bytes / 1e6:.1f} MB of tensors in place of {made.source_bytes / 1e6:.1f} MB "
        f"({made.n_bytes / made.source_bytes:.1%})"
    ]
    if made.n_before:
        lines.append(f"{made.n_before} tensors were there already, of a run that did not end")
    if made.narrow:
        names = ", ".join(made.narrow[:3]) + (", ..." if len(made.narrow) > 3 else "")
        lines.append(
            f"{len(made.narrow)} matrices stayed as they were, their rows are no multiple of "
            f"{made.multiple}: {names}"
        )
    if made.rounded:
        names = ", ".join(made.rounded[:3]) + (", ..." if len(made.rounded) > 3 else "")
        lines.append(
            f"{len(made.rounded)} matrices were rounded to the nearest: experts, a language head, "
            f"inputs that nothing can scale: {names}"
        )
    paths = quote(made.path), quote(model)
    compare = "kvasir evaluate {} --reference {} --text self".format(*paths)
    lines.append(f"how far it is from its origin: {compare}")
    show("\n".join(lines) + "\n", sys.stdout)


def _judge(model: str, required: tuple[str, ...]) -> Callable[[Path], str] | None:
    """On a text that the origin writes, another than those that methods choose by."""
    from kvasir.cli.evaluate_text import progress
    from kvasir.evaluation.gates import parse_gate
    from kvasir.evaluation.judge import judged_by

    if not required:
        return None
    gates = tuple(map(parse_gate, required))
    return judged_by(gates, model, EngineOptions(), progress(sys.stderr, "judged: chunk"))


def _imatrix(how: object, options: dict[str, Any]) -> Callable[..., Any]:
    """Raises ConfigError beside a text, and for methods that take none."""
    from kvasir.quantize.imatrix import Imatrix
    from kvasir.quantize.mixtures import GgufMethod

    if not (isinstance(how, GgufMethod) and how.is_mixed) or options["calibration"]:
        raise ConfigError("--imatrix is an option of K-quants, and takes the place of a text")
    found = Imatrix(options["imatrix"])
    return lambda *_: found


def _calibration(how: object, options: dict[str, Any]) -> Callable[..., Any] | None:
    """None for methods that take no text. Raises ConfigError where one is given to those."""
    from kvasir.cli.evaluate_text import progress
    from kvasir.quantize.mixtures import GgufMethod
    from kvasir.quantize.quantize import CalibratedMethod

    text, n_chunks = options["calibration"], options["calibration_chunks"]
    is_asked = text is not None or n_chunks is not None
    is_weighed = isinstance(how, GgufMethod) and how.is_mixed and is_asked
    if isinstance(how, CalibratedMethod) or is_weighed:
        from kvasir.evaluation.calibrate import calibrated_by

        told = progress(sys.stderr, "calibration: chunk")
        return calibrated_by(EngineOptions(), text or "self", n_chunks, told, not is_weighed)
    if is_asked:
        raise ConfigError(
            "--calibration is an option of gptq, awq, smoothquant and K-quants: others take no text"
        )
    return None
