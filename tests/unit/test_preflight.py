"""The check before the build: what is missing is named, with the one line that installs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "preflight.sh"
TOOLS = ("sh", "tr", "awk", "sed")

# An interpreter that fails what the test wants it to fail.
PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) exit {old} ;;
    *ensurepip*) exit {no_venv} ;;
    *Python.h*) exit {no_headers} ;;
esac
"""


def script(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """A PATH of its own."""

    def __init__(self, folder: Path, manager: str = "apt-get") -> None:
        self.bin = folder
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (folder / tool).symlink_to(found)
        script(folder / "id", "#!/bin/sh\necho 1000\n")
        script(folder / manager)

    def python(
        self, name: str, *, old: bool = False, no_venv: bool = False, no_headers: bool = False
    ) -> None:
        script(
            self.bin / name,
            PYTHON.format(old=int(old), no_venv=int(no_venv), no_headers=int(no_headers)),
        )

    def compiler(self) -> None:
        script(self.bin / "c++")

    def run(self, *words: str) -> tuple[int, str, str]:
        shell = shutil.which("sh")
        assert shell is not None
        env = {key: value for key, value in os.environ.items() if key != "CXX"}
        done = subprocess.run(
            [shell, str(SCRIPT), *words],
            env={**env, "PATH": str(self.bin)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


def test_a_complete_machine_passes_silently(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.python("python3")
    machine.compiler()
    assert machine.run("check", "python3") == (0, "", "")
    assert machine.run("find") == (0, "python3\n", "")


@pytest.mark.parametrize(
    ("manager", "lacks", "line"),
    [
        ("apt-get", "compiler", "sudo apt-get install -y g++"),
        ("apt-get", "no_venv", "sudo apt-get install -y python3-venv"),
        ("apt-get", "no_headers", "sudo apt-get install -y python3-dev"),
        ("dnf", "compiler", "sudo dnf install -y gcc-c++"),
        ("dnf", "no_headers", "sudo dnf install -y python3-devel"),
    ],
)
def test_one_missing_thing(tmp_path: Path, manager: str, lacks: str, line: str) -> None:
    machine = Machine(tmp_path, manager)
    machine.python("python3", no_venv=lacks == "no_venv", no_headers=lacks == "no_headers")
    if lacks != "compiler":
        machine.compiler()
    code, _, error = machine.run("check", "python3")
    assert code == 1
    assert error.splitlines()[-1].strip() == line


def test_a_bare_machine_gets_everything_in_one_line(tmp_path: Path) -> None:
    code, _, error = Machine(tmp_path).run("check", "python3")
    assert code == 1
    assert "Python 3.11 or newer, a C++20 compiler" in error
    assert error.splitlines()[-1].strip() == (
        "sudo apt-get install -y python3 python3-dev python3-venv g++"
    )


def test_a_python_of_another_name_gets_its_own_packages(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.python("python3", old=True)
    machine.python("python3.12", no_venv=True, no_headers=True)
    machine.compiler()
    assert machine.run("find")[1] == "python3.12\n"
    _, _, error = machine.run("check", "python3.12")
    assert error.splitlines()[-1].strip() == (
        "sudo apt-get install -y python3.12-venv python3.12-dev"
    )


def test_an_old_python_asks_for_a_newer_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "dnf")
    machine.python("python3", old=True)
    machine.compiler()
    assert machine.run("find") == (0, "", "")
    _, _, error = machine.run("check", "python3")
    assert error.splitlines()[-1].strip() == "sudo dnf install -y python3.12 python3.12-devel"


def test_an_unknown_word_is_refused(tmp_path: Path) -> None:
    assert Machine(tmp_path).run("look")[0] == 2
