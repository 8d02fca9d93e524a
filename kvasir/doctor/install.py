"""The installation: its native core, and whether there is another one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from kvasir.doctor.finding import Finding, Scene
from kvasir.doctor.machine import cpu_flags

NEEDS = {
    "avx2": {"avx2", "fma", "f16c", "bmi2"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx512_vnni": {"avx512f", "avx512_vnni"},
    "avx512_bf16": {"avx512_vnni", "avx512_bf16"},
}
"""Flags of /proc/cpuinfo with which a level runs."""


def core(scene: Scene) -> Iterator[Finding]:
    """Kernels are built, for this CPU."""
    try:
        built = frozenset(scene.levels())
    except ImportError as error:
        yield Finding(
            "blocks",
            "the native core does not load",
            str(error),
            "nothing computes",
            "pip install --force-reinstall --no-deps kvasir-llm; of a clone, make env",
        )
        return
    if not built:
        yield Finding(
            "blocks",
            "the native core has no kernels that this CPU can run",
            "it was built for another CPU alone",
            "nothing computes",
            "make env in the clone builds all levels",
        )
        return
    flags = cpu_flags(scene)
    able = [level for level, needs in NEEDS.items() if needs <= flags]
    if able and able[-1] not in built:
        yield Finding(
            "costs",
            f"the native core has no kernels of {able[-1]}, which this CPU has",
            f"it was built for {', '.join(sorted(built))}, on another machine",
            "answers take up to eight times as long",
            "make env in the clone builds all levels",
        )


def others(scene: Scene) -> Iterator[Finding]:
    """Two installations: the command and the package may be of different ones."""
    found = {
        path.parent.resolve()
        for folder in sys.path
        if folder and (path := Path(folder) / "kvasir" / "_native.pyi").is_file()
    }
    if len(found) > 1:
        yield Finding(
            "costs",
            "Python finds two installations of Kvasir",
            ", ".join(sorted(map(str, found))),
            "which one runs depends on the folder that you are in",
            "pip uninstall kvasir-llm in one of them",
        )
    command = shutil.which("kvasir", path=scene.variables.get("PATH", ""))
    here = Path(sys.executable).parent
    if command is None or Path(command).resolve().parent == here.resolve():
        return
    if (here / "kvasir").exists() and Path(command).resolve() != (here / "kvasir").resolve():
        yield Finding(
            "costs",
            "kvasir on PATH is another one than this",
            f"{command}, beside {here / 'kvasir'}",
            "two versions share one cache, and you may talk to the older",
            f"remove one of them, or put {here} first in PATH",
        )


def python_flags(scene: Scene) -> Iterator[Finding]:
    """What makes every start slow."""
    if scene.variables.get("PYTHONDONTWRITEBYTECODE"):
        yield Finding(
            "costs",
            "PYTHONDONTWRITEBYTECODE is set",
            "the variable is set",
            "each start compiles what it imports: a second more",
            "unset PYTHONDONTWRITEBYTECODE",
        )
