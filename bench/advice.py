"""What ``kvasir advise`` says of loads, beside what the files that it speaks of take.

    python -m bench.advice ORIGIN --made int8=FOLDER --made "rtn 4 bits=FOLDER" \\
        --loads 1:128:128,16:256:64 --output bench/results/advice-2cores.json

ORIGIN is a model that is not quantized; each FOLDER is one that ``kvasir quantize`` made of it. Of
each load (requests : tokens of a prompt : of an answer) the advice is asked for, and all files run
all requests at once, in turns; the ratios of a turn meet one minute of the machine. A file that
is there already gets further parts.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvasir.bench.advise import AdvisedFormat, AskedAdvice, advise, choice
from kvasir.bench.candidates import AS_IT_IS, candidates
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.pretend_times import RequestLoad
from kvasir.bench.report import command_line, summary, write
from kvasir.bench.workload import Workload
from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine

PROGRAM = "python -m bench.advice"
ROUNDS = 3


def rounds(
    origin: str, files: dict[str, str], load: RequestLoad
) -> Iterator[tuple[list[AdvisedFormat], dict[str, float]]]:
    """What is advised, and right after it the seconds of all requests with each file."""
    model = load_model(origin)
    wanted = [x for x in candidates(model) if x.name in (AS_IT_IS, *files)]
    built = {name: _engine(path, load) for name, path in {AS_IT_IS: origin, **files}.items()}
    try:
        for workload in built.values():
            workload.run(load.batch, load.prompt, load.output)
        for key in range(ROUNDS):
            said = advise(model, wanted, AskedAdvice(load), EngineOptions())
            yield said, {name: _seconds(built[name], load, key + 1) for name in built}
    finally:
        for workload in built.values():
            workload.built.engine.close()


def _seconds(workload: Workload, load: RequestLoad, key: int) -> float:
    return max(x.last for x in workload.run(load.batch, load.prompt, load.output, key=key))


def _engine(path: str, load: RequestLoad) -> Workload:
    options = EngineOptions(
        model=path,
        max_model_len=load.prompt + load.output,
        max_num_seqs=load.batch,
        enable_prefix_caching=False,
    )
    return Workload(build_engine(options))


def compared(origin: str, files: dict[str, str], load: RequestLoad) -> dict[str, Any]:
    """Of one load."""
    found = list(rounds(origin, files, load))
    rows = [_row(name, found) for name in (AS_IT_IS, *files)]
    seconds = {row["format"]: row["seconds"] for row in rows}
    best = min(seconds, key=lambda name: seconds[name])
    choices = [taken.name for said, _ in found if (taken := choice(said)) is not None]
    return {
        "load": [load.batch, load.prompt, load.output],
        "formats": rows,
        "best": best,
        "choices": [[name, round(seconds[name] / seconds[best], 3)] for name in choices],
    }


def _row(
    name: str, found: Sequence[tuple[list[AdvisedFormat], dict[str, float]]]
) -> dict[str, Any]:
    """Medians over the rounds; each ratio is of one round."""
    advised = [next(x.seconds or 0.0 for x in said if x.name == name) for said, _ in found]
    real = [seconds[name] for _, seconds in found]
    ratios = [x / y for x, y in zip(advised, real, strict=True)]
    return {
        "format": name,
        "advised": summary(advised, 4),
        "seconds": round(statistics.median(real), 4),
        "measured": summary(real, 4),
        "advised_over_measured": summary(ratios, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("origin")
    parser.add_argument("--made", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--loads", default="1:128:128,1:1024:32,16:128:64,32:32:64")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    files = dict(each.split("=", 1) for each in arguments.made)
    loads = [RequestLoad(*map(int, each.split(":"))) for each in arguments.loads.split(",")]
    parts = json.loads(arguments.output.read_text())["parts"] if arguments.output.exists() else []
    for load in loads:
        with Meter() as meter:
            found = compared(arguments.origin, files, load)
        parts.append({"machine": fingerprint(), "foreign": meter.foreign, **found})
    document = {
        "command": command_line(PROGRAM),
        "model": load_model(arguments.origin).source.name,
        "rounds": ROUNDS,
        "machine": parts[0]["machine"],
        "parts": parts,
    }
    write(document, arguments.output)


if __name__ == "__main__":
    main()
