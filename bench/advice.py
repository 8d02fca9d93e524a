"""What ``kvasir advise`` says of loads, beside what the files that it speaks of take.

    python -m bench.advice ORIGIN --made int8=FOLDER --made "rtn 4 bits=FOLDER" \\
        --loads 1:128:128,16:256:64 --output bench/results/advice-2cores.json

ORIGIN is a model that is not quantized; each FOLDER is one that ``kvasir quantize`` made of it. Of
each load, requests : tokens of a prompt : tokens of an answer, all files run all requests at once,
in turns; the median of their seconds stands beside those that were advised.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvasir.bench.advise import AdvisedFormat, AskedAdvice, advise, choice
from kvasir.bench.candidates import AS_IT_IS, candidates
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.pretend_times import RequestLoad
from kvasir.bench.report import command_line, write
from kvasir.bench.workload import Workload
from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine
from kvasir.models.loaded import load_model

PROGRAM = "python -m bench.advice"
TURNS = 5


def measured(files: dict[str, str], load: RequestLoad) -> dict[str, list[float]]:
    """Seconds of all requests in each turn; a turn before them warms up."""
    found: dict[str, list[float]] = {name: [] for name in files}
    built = {name: _engine(path, load) for name, path in files.items()}
    try:
        for turn in range(TURNS + 1):
            for name, workload in built.items():
                times = workload.run(load.batch, load.prompt, load.output, key=turn)
                found[name].append(max(x.last for x in times))
    finally:
        for workload in built.values():
            workload.built.engine.close()
    return {name: seconds[1:] for name, seconds in found.items()}


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
    model = load_model(origin)
    wanted = [x for x in candidates(model) if x.name in (AS_IT_IS, *files)]
    said = advise(model, wanted, AskedAdvice(load), EngineOptions())
    real = measured({AS_IT_IS: origin, **files}, load)
    rows = [_row(one, real[one.name]) for one in said]
    best, taken = min(rows, key=lambda x: x["seconds"]), choice(said)
    chosen = next(x for x in rows if taken is not None and x["format"] == taken.name)
    return {
        "load": [load.batch, load.prompt, load.output],
        "formats": rows,
        "choice": chosen["format"],
        "best": best["format"],
        "choice_over_best": round(chosen["seconds"] / best["seconds"], 3),
    }


def _row(one: AdvisedFormat, runs: Sequence[float]) -> dict[str, Any]:
    assert one.seconds is not None
    seconds = statistics.median(runs)
    return {
        "format": one.name,
        "advised": round(one.seconds, 4),
        "seconds": round(seconds, 4),
        "advised_over_measured": round(one.seconds / seconds, 3),
        "runs": [round(x, 4) for x in runs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("origin")
    parser.add_argument("--made", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--loads", default="1:128:128,1:1024:32,16:128:64,64:64:32")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    files = dict(each.split("=", 1) for each in arguments.made)
    loads = [RequestLoad(*map(int, each.split(":"))) for each in arguments.loads.split(",")]
    with Meter() as meter:
        rows = [compared(arguments.origin, files, load) for load in loads]
    document = {
        "command": command_line(PROGRAM),
        "machine": fingerprint(),
        "model": load_model(arguments.origin).source.name,
        "turns": TURNS,
        "foreign": meter.foreign,
        "results": rows,
    }
    write(document, arguments.output)


if __name__ == "__main__":
    main()
