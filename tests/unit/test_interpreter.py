"""A process of our own runs this package, whatever lies in the working directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvasir.serve.interpreter import module_command


def test_what_lies_in_the_working_directory_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvasir").mkdir()
    for name in ("kvasir/__init__.py", "pathlib.py"):
        (tmp_path / name).write_text("raise SystemExit('a stranger')\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    command = module_command("kvasir.serve.interpreter")
    assert command == (sys.executable, "-P", "-m", "kvasir.serve.interpreter")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    taken = subprocess.run([x for x in command if x != "-P"], capture_output=True, check=False)
    assert b"a stranger" in taken.stderr  # as it would be


def test_a_package_in_the_working_directory_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert module_command("x") == (sys.executable, "-m", "x")


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine is started anew all the same."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(gone)
    gone.rmdir()
    command = module_command("kvasir.serve.interpreter")
    assert command == (sys.executable, "-P", "-m", "kvasir.serve.interpreter")
    assert subprocess.run(command, check=False).returncode == 0
