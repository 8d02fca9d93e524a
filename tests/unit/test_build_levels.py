"""Which files of native/isa a build for one CPU compiles: configured, not compiled."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.levels import NEEDS

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
CMAKE, NINJA = (shutil.which(name, path=str(TOOLS)) for name in ("cmake", "ninja"))


def units(folder: Path, *levels: str) -> set[str]:
    """Of native/isa, as level/file."""
    assert CMAKE is not None
    words = [CMAKE, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja"]
    words += [f"-DCMAKE_MAKE_PROGRAM={NINJA}", f"-DPython_EXECUTABLE={sys.executable}"]
    words += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DKVASIR_LEVELS={';'.join(levels)}"]
    words += [f"-DKVASIR_BEST_ALONE={'ON' if levels else 'OFF'}"]
    subprocess.run(words, check=True, capture_output=True)
    commands = json.loads((folder / "compile_commands.json").read_text())
    files = (Path(each["file"]) for each in commands)
    return {f"{x.parent.name}/{x.stem}" for x in files if x.parent.parent.name == "isa"}


@pytest.mark.skipif(CMAKE is None or NINJA is None, reason="needs the build's own cmake and ninja")
def test_files_that_a_cpu_never_chooses_are_left_out(tmp_path: Path) -> None:
    with_bf16 = units(tmp_path / "a", "avx512", "avx512_vnni", "avx512_bf16")
    vnni_alone = units(tmp_path / "b", "avx512", "avx512_vnni")
    assert with_bf16 - vnni_alone == {"avx512_vnni/attention", "avx512_vnni/scaled"}
    assert vnni_alone - with_bf16 == {"avx512/attention", "avx512/scaled"}
    assert {"avx512_vnni/linear", "avx512/rows"} <= with_bf16 & vnni_alone
    assert with_bf16 | vnni_alone < units(tmp_path / "c")


def test_a_wheel_has_all_levels_whatever_was_built_before() -> None:
    """CMake keeps what it was told in the folder that `make serve` and `make wheel` share."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["cmake"]
    expected = {"KVASIR_LEVELS": ";".join(NEEDS), "KVASIR_BEST_ALONE": "OFF"}
    assert told["define"] == expected
