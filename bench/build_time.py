"""How long a clone takes to compile, with the caller's compiler and package configuration.

    python -m bench.build_time FOLDER --output NAME

Clones this repository into FOLDER, which is new, and builds there what ``make serve`` builds before
it serves (packages and this CPU's levels; an empty ccache is filled meanwhile), the same again from
that cache, and the levels of a wheel without one. Writes bench/results/NAME.json.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.versions import RESULTS
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write

PROGRAM = "python -m bench.build_time"
LAUNCHERS = ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER")
SERVED = [".venv/.served"]


def environment(cache: Path | None) -> dict[str, str]:
    """Without a compiler cache, or with the one in ``cache``."""
    known = {name: x for name, x in os.environ.items() if name not in LAUNCHERS}
    if cache is None:
        return known | {"CCACHE_DISABLE": "1"}
    return known | dict.fromkeys(LAUNCHERS, "ccache") | {"CCACHE_DIR": str(cache)}


def build(clone: Path, targets: list[str], cache: Path | None = None) -> dict[str, Any]:
    """Seconds of ``make`` with ``targets``, by the clock and of all CPUs. Raises
    CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Meter() as meter:
        subprocess.run(
            ["make", "-C", str(clone), *targets],
            check=True,
            env=environment(cache),
            stdout=subprocess.DEVNULL,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(meter.seconds, 1), "cpu_seconds": round(cpu, 1), "foreign": meter.foreign}


def main() -> None:
    folder, flag, name = sys.argv[1:]
    if flag != "--output":
        sys.exit(__doc__)
    root, clone, cache = Path(__file__).parents[1], Path(folder) / "clone", Path(folder) / "cache"
    subprocess.run(["git", "clone", "-q", str(root), str(clone)], check=True)
    results = {"serve": build(clone, SERVED, cache)}
    shutil.rmtree(clone / ".venv")
    shutil.rmtree(clone / "build")
    results["serve, cached"] = build(clone, SERVED, cache)
    shutil.rmtree(clone / "build")
    results["all levels"] = build(clone, ["wheel"])
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True)
    write(
        {
            "kind": "build-time",
            "command": command_line(PROGRAM),
            "machine": fingerprint(),
            "compiler": compiler.stdout.splitlines()[0],
            "results": results,
        },
        RESULTS / f"{name}.json",
    )


if __name__ == "__main__":
    main()
