"""Divergence of quantized models from weights that lie on no grid.

    python -m bench.quantized FILE.gguf --work FOLDER [--chunks N] [--output FILE]

The model of a GGUF file is moved off its grid, written as a folder of f32 weights, quantized by
each method with the same calibration tokens, and each beside the origin scored on others. All
tokens are what the model writes at temperature 1; of a chunk of 512 the second half is scored. What
the work folder has is not made again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.quantized.compare import compare
from bench.quantized.moved import write_moved
from bench.quantized.texts import written
from kvasir.bench.fingerprint import fingerprint
from kvasir.bench.report import command_line
from kvasir.checkpoints.loaded import LoadedModel
from kvasir.config.options import EngineOptions
from kvasir.evaluation.calibrate import Calibration
from kvasir.evaluation.chunks import Chunks
from kvasir.quantize.methods import method_named
from kvasir.quantize.quantize import CalibratedMethod, quantize

CHUNK = 512
GROUP = 64
"""SmolLM2's rows of 576 have no groups of 128."""
METHODS = ("rtn", "gptq", "awq", "int8", "smoothquant")
IN_GROUPS = ("rtn", "gptq", "awq")
BARS = (("gptq", "rtn", 0.8), ("awq", "rtn", 0.95), ("smoothquant", "int8", 1.0))
"""A method's divergence over another's, and what it should be at most."""
DTYPE = "bfloat16"
"""Of the origin, and of models whose activations stay floats."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.quantized",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a GGUF file of SmolLM2")
    parser.add_argument("--work", type=Path, required=True, help="a folder that is kept")
    parser.add_argument("--chunks", type=int, default=80, help="that are scored")
    parser.add_argument("--calibration", type=int, default=24, help="chunks that choose")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def make(origin: Path, folder: Path, name: str, chunks: Chunks) -> None:
    """One quantized model, unless it is there."""
    if folder.exists():
        return

    def calibrate(model: LoadedModel, tensors: Sequence[str], kept: Path) -> Calibration:
        return Calibration(model, tensors, EngineOptions(dtype=DTYPE), chunks)

    bits, group = (4, GROUP) if name in IN_GROUPS else (None, None)
    method = method_named(name, bits, group, None)
    chooses = isinstance(method, CalibratedMethod)
    quantize(str(origin), method, folder, calibrate=calibrate if chooses else None)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    origin = args.work / "origin"
    if not origin.exists():
        write_moved(args.model, origin)
    n = args.calibration + args.chunks
    texts = written(args.model, n, CHUNK, args.work / "chunks.json")
    models: dict[str, tuple[Path, str]] = {}
    for name in METHODS:
        make(origin, args.work / name, name, texts[: args.calibration])
        models[name] = (args.work / name, DTYPE if name in IN_GROUPS else "auto")
    found = compare(origin, models, texts[args.calibration :], DTYPE)
    return {
        "tokens": {"calibration": args.calibration * CHUNK, "scored": args.chunks * CHUNK // 2},
        "group": GROUP,
        "figures": {name: msgspec.to_builtins(x) for name, x in found.figures.items()},
        "ratios": [
            {"method": one, "over": other, "bar": bar, "kld": found.ratio(one, other)}
            for one, other, bar in BARS
        ],
    }


def main() -> None:
    args = arguments()
    record = measure(args)
    record |= {
        "command": command_line("python -m bench.quantized"),
        "model": args.model.name,
        "machine": fingerprint(),
    }
    text = json.dumps(record, indent=1) + "\n"
    print(text)
    if args.output:
        args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
