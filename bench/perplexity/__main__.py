"""Perplexity beside speed, formats and cache types.

    python -m bench.perplexity blocks TEXT [--model FILE] [--llama-perplexity BINARY]
    python -m bench.perplexity formats TEXT --models FILE... --llama-perplexity BINARY
    python -m bench.perplexity kv TEXT [--model FILE] [--dtypes bfloat16 int8 ...]

each with [--chunks N] [--output NAME]; NAME.json and NAME.md are written. The text is cut into
chunks of 512 tokens; the second half of each is scored, as llama-perplexity does with -c 512.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.perplexity.blocks import measure_blocks
from bench.perplexity.formats import measure_formats
from bench.perplexity.kv import measure_kv
from bench.perplexity.score import Text
from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.planned import planned_executor
from kvasir.bench.report import command_line
from kvasir.config.options import EngineOptions
from kvasir.core.kvtypes import KV_TYPES

KV_DTYPES = tuple(kind.name for kind in KV_TYPES.values())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.perplexity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("blocks", "formats", "kv"):
        command = commands.add_parser(name)
        command.add_argument("text", type=Path)
        command.add_argument("--chunks", type=int, default=80)
        command.add_argument("--output", type=Path, help="without suffix")
        if name == "formats":
            command.add_argument("--models", type=Path, nargs="+", required=True)
        else:
            command.add_argument("--model")
        if name == "kv":
            command.add_argument("--dtypes", nargs="+", default=KV_DTYPES)
        else:
            command.add_argument("--llama-perplexity", required=name == "formats")
    return parser.parse_args()


def measure(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The record and its table."""
    text = Text(args.text, args.chunks)
    if args.command == "blocks":
        return measure_blocks(args.model, text, args.llama_perplexity)
    if args.command == "formats":
        return measure_formats(args.models, text, args.llama_perplexity)
    return measure_kv(args.model, text, tuple(args.dtypes))


def main() -> None:
    args = arguments()
    with Meter() as meter:
        record, table = measure(args)
    print(table)
    if args.output:
        args.output.with_suffix(".md").write_text(table, encoding="utf-8")
        record |= {
            "command": command_line("python -m bench.perplexity"),
            "text": args.text.name,
            "chunks": args.chunks,
            "machine": fingerprint(),
            "foreign": meter.foreign,
        }
        if args.command == "blocks":  # the others time nothing
            record["ceilings"] = measure_ceilings(planned_executor(EngineOptions()).threads)
        args.output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
