"""Rates of two versions of Kvasir, judged to a hundredth on a machine whose neighbours move.

    python -m bench.rates OLD_PYTHON NEW_PYTHON MODEL.gguf --pairs 30 --output NAME

Both versions are loaded at once, and asked in turns: a short load of one, the same of the other.
What changes from one minute to the next meets both; the median of the pairs' ratios is judged, and
told with the interval that holds it with 95 % (order statistics, no assumption about the shape).
Writes bench/results/NAME.json.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from bench.versions import parser_of
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write

RESULTS = Path(__file__).parent / "results"
WORKER = Path(__file__).parent / "rates_worker.py"
PROGRAM = "python -m bench.rates"


class Load(msgspec.Struct, frozen=True):
    n: int
    prompt: int
    output: int


LOADS = {
    "decode": Load(1, 32, 128),
    "prefill 512": Load(1, 512, 1),
    "prefill 2048": Load(1, 2048, 1),
    "8 requests": Load(8, 32, 64),
    "16 requests": Load(16, 32, 64),
    "64 requests": Load(64, 64, 32),
}


class Version:
    """A process of one version, ready to be asked."""

    def __init__(self, python: Path, model: Path, threads: int) -> None:
        command = [str(python), str(WORKER), str(model), str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def ask(self, load: Load, seed: int) -> dict[str, Any]:
        """Seconds of ``load``, and a hash of its tokens. Raises RuntimeError when it has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process has no pipes")
        print(json.dumps({**msgspec.to_builtins(load), "seed": seed}), file=stdin, flush=True)
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self._process.wait()}")
        told: dict[str, Any] = json.loads(line)
        return told


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Bounds that hold the median with 95 %: the kth of the sorted ``ratios`` from either end, k
    by the binomial distribution. All of the range where there are fewer than six."""
    ranked, n = sorted(ratios), len(ratios)
    k, below = 0, 0.0
    while below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    k = max(k, 1)
    return ranked[k - 1], ranked[n - k]


def judged(old: Sequence[float], new: Sequence[float]) -> dict[str, Any]:
    """Of seconds in pairs: medians, and by how much the new version is faster."""
    ratios = [before / after for before, after in zip(old, new, strict=True)]
    low, high = interval(ratios)
    return {
        "old": round(statistics.median(old), 5),
        "new": round(statistics.median(new), 5),
        "ratio": round(statistics.median(ratios), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "pairs": len(ratios),
    }


def measure(versions: Sequence[Version], name: str, n_pairs: int) -> dict[str, Any]:
    load = LOADS[name]
    seconds: list[list[float]] = [[], []]
    n_equal = 0
    for turn in range(-1, n_pairs):  # the first pair warms up
        order = (0, 1) if turn % 2 else (1, 0)
        told = {i: versions[i].ask(load, 1000 + turn) for i in order}
        if turn < 0:
            continue
        n_equal += told[0]["tokens"] == told[1]["tokens"]
        for i in order:
            seconds[i].append(told[i]["seconds"])
    row = {"what": name, **judged(*seconds), "equal_answers": n_equal}
    print(row, file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = parser_of(PROGRAM, __doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    args = parser.parse_args()
    model = args.model.absolute()
    with (
        Meter() as meter,
        Version(args.old.absolute(), model, args.threads) as old,
        Version(args.new.absolute(), model, args.threads) as new,
    ):
        rows = [measure((old, new), name, args.pairs) for name in args.loads]
    told = {
        "kind": "rates",
        "command": command_line(PROGRAM),
        "machine": fingerprint(),
        "model": args.model.name,
        "versions": dict(zip(("old", "new"), args.commits or ("", ""), strict=True)),
        "results": {"foreign": meter.foreign, "rows": rows},
    }
    write(told, RESULTS / f"{args.output}.json" if args.output else None)


if __name__ == "__main__":
    main()
