"""The ISA levels of this CPU's best kernels, which ``make serve`` builds. Others become nothing.

``levels.py [FILE]``: as CMake's list KVASIR_LEVELS; FILE stands in for /proc/cpuinfo.
"""

from __future__ import annotations

import sys
from pathlib import Path

NEEDS = {
    "scalar": set[str](),
    "avx2": {"avx2", "fma", "f16c", "bmi2"},
    "avx2_vnni": {"avx2", "avx_vnni"},
    "avx512": {"avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx512_vnni": {"avx512f", "avx512_vnni"},
    "avx512_bf16": {"avx512_vnni", "avx512_bf16"},
    "amx": {"avx512_vnni", "amx_tile", "amx_int8"},
}
"""Flags of /proc/cpuinfo."""
WHOLE = ("scalar", "avx2", "avx512")
"""Levels with every kernel (``native/generic/fill.inl``): what is below one is called in variants
of 256 bits alone (``native/cpu/variants.cpp``), which such a build does not have."""


def levels(cpuinfo: str) -> list[str]:
    """The highest whole level and those above it, lowest first; all if flags are not told."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    flags = next((set(value.split()) for name, _, value in lines if name.strip() == "flags"), None)
    if flags is None:
        return list(NEEDS)
    able = [level for level, needs in NEEDS.items() if needs <= flags]
    return able[max(i for i, level in enumerate(able) if level in WHOLE) :]


def here(path: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Of this machine."""
    try:
        return levels(path.read_text(encoding="utf-8"))
    except OSError:
        return levels("")


if __name__ == "__main__":
    print(";".join(here(*map(Path, sys.argv[1:2]))))
