"""Runs engines in turns and writes their rates beside each other.

    python -m bench.peers --threads 2 --output NAME
        --kvasir MODEL.gguf  --llamacpp BUILD/bin MODEL.gguf
        --openvino PYTHON FOLDER  --vllm PYTHON FOLDER

Every engine option may be repeated: the same engine on another file is another column. Writes
bench/results/NAME.json and NAME.md. The engines take turns, so that a machine that is slower for a
minute is slower for all; the ceilings are measured in the same run. Tokens per second:

- decode: 128 tokens after a prompt of 32, one request;
- prefill N: a prompt of N tokens, one request. With its first output token, but llama-bench, which
  samples none;
- batch: requests that come all at once; output tokens over the whole time, prefill included.

A turn of any engine: decode and each prefill warmed, then the median of three runs; a batch of few
output tokens that warms up, then one that is timed. A column has the medians of its turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.peers.engines import Child, Engine, Kvasir, LlamaCpp
from bench.peers.shapes import Rates, Shapes
from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line

RESULTS = Path(__file__).parents[1] / "results"


def measure(engines: list[Engine], shapes: Shapes, repeat: int) -> list[dict[str, Any]]:
    """Per engine its name, version, turns and medians."""
    found: list[dict[str, Any]] = [{"name": engine.name, "turns": []} for engine in engines]
    for _ in range(repeat):
        for engine, kept in zip(engines, found, strict=True):
            with Meter() as meter:
                turn = engine.turn(shapes)
            kept["version"] = turn.version
            kept["turns"].append({**turn.rates, "foreign": meter.foreign})
            print(engine.name, kept["turns"][-1], file=sys.stderr)
    for kept in found:
        kept["median"] = medians(kept["turns"])
    return found


def medians(found: list[Rates]) -> Rates:
    names = [name for name in found[0] if name != "foreign"]
    return {name: round(statistics.median(turn[name] for turn in found), 1) for name in names}


def table(document: dict[str, Any]) -> str:
    """Markdown: a column per engine; the last one is the first engine over the best other one."""
    machine, engines = document["machine"], document["engines"]
    ours, *others = engines
    foreign = max(turn["foreign"] for engine in engines for turn in engine["turns"])
    lines = [
        f"{document['shapes']['threads']} threads, {machine['cpu']} ({machine['cpu_family']}), "
        f"{machine['time']}; {', '.join(engine['version'] for engine in engines)}.",
        f"Medians of {len(ours['turns'])} turns in tokens per second; "
        f"other processes took at most {foreign:.1%} of the machine.",
        "",
        f"| | {' | '.join(engine['name'] for engine in engines)} | over the best |",
        "|---|" + "--:|" * (len(engines) + 1),
    ]
    for name, rate in ours["median"].items():
        best = max((engine["median"][name] for engine in others), default=rate)
        cells = " | ".join(str(engine["median"][name]) for engine in engines)
        lines.append(f"| {name} | {cells} | {rate / best:.2f} |")
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kvasir", action="append", type=Path, required=True, metavar="MODEL")
    pair: dict[str, Any] = {"action": "append", "nargs": 2, "type": Path, "default": []}
    parser.add_argument("--llamacpp", metavar=("BIN", "MODEL"), **pair)
    parser.add_argument("--openvino", metavar=("PYTHON", "MODEL"), **pair)
    parser.add_argument("--vllm", metavar=("PYTHON", "MODEL"), **pair)
    parser.add_argument("--isa", help="level for Kvasir, beside llama.cpp built for the same one")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prefill", type=int, nargs="*", default=(512, 2048))
    parser.add_argument(
        "--batch", type=int, nargs=3, default=(64, 128, 128), metavar=("N", "IN", "OUT")
    )
    parser.add_argument("--vocab", type=int, default=32000, help="prompts are ids below it")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", required=True, help="name below bench/results")
    return parser.parse_args()


def engines_of(args: argparse.Namespace) -> list[Engine]:
    level = ("--isa", args.isa) if args.isa else ()
    name = f"Kvasir {args.isa}" if args.isa else "Kvasir"
    found: list[Engine] = [Kvasir(f"{name}, {path.name}", path, level) for path in args.kvasir]
    found += [LlamaCpp(f"llama.cpp, {path.name}", folder, path) for folder, path in args.llamacpp]
    found += [
        Child(f"OpenVINO GenAI, {path.name}", python, "openvino_child", path)
        for python, path in args.openvino
    ]
    found += [Child(f"vLLM, {path.name}", python, "vllm_child", path) for python, path in args.vllm]
    return found


def main() -> None:
    args = arguments()
    engines = engines_of(args)
    shapes = Shapes(args.threads, tuple(args.prefill), tuple(args.batch), args.vocab)
    found = measure(engines, shapes, args.repeat)
    document = {
        "command": command_line("python -m bench.peers"),
        "shapes": json.loads(shapes.encode()),
        "machine": fingerprint(),
        "ceilings": measure_ceilings(args.threads),
        "engines": found,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2) + "\n"
    (RESULTS / f"{args.output}.json").write_text(text, encoding="utf-8")
    (RESULTS / f"{args.output}.md").write_text(table(document), encoding="utf-8")
    print(table(document))


if __name__ == "__main__":
    main()
