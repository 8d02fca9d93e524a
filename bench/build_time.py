"""How long a clone takes to compile, with the caller's compiler and package configuration.

    python -m bench.build_time serve|wheel FOLDER --output NAME

Clones this repository into FOLDER, if that is not there yet, and builds in it, from nothing:
``serve``: what ``make serve`` builds before it serves, packages and this CPU's levels, while a
compiler cache (ccache) is filled, and the same from that cache; ``wheel``: all levels of a wheel,
without a cache, once its packages are there. Writes bench/results/NAME.json.
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
    return {
        "seconds": round(meter.seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "foreign": meter.foreign,
    }


def serve(clone: Path) -> dict[str, Any]:
    cache = clone.parent / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    results = dict[str, Any]()
    for name in ("serve", "serve, cached"):
        clear(clone, ".venv", "build")
        results[name] = build(clone, [".venv/.served"], cache)
    return results


def wheel(clone: Path) -> dict[str, Any]:
    build(clone, [".venv/.base"])
    clear(clone, "build", "dist")
    return {"wheel": build(clone, ["wheel"])}


def clear(clone: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(clone / name, ignore_errors=True)


PARTS = {"serve": serve, "wheel": wheel}


def main() -> None:
    part, folder, flag, name = sys.argv[1:]
    if flag != "--output" or part not in PARTS:
        sys.exit(__doc__)
    root, clone = Path(__file__).parents[1], Path(folder).absolute() / "clone"
    if not clone.exists():
        subprocess.run(["git", "clone", "-q", str(root), str(clone)], check=True)
    results = PARTS[part](clone)
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
