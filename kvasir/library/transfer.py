"""Brings one file here: in parts at once, going on after cuts, stalls and the death of the process,
and under its name only when its hash is right."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from kvasir.config.sizes import format_size
from kvasir.core.errors import ModelError
from kvasir.library.journal import FilePart, PartJournal
from kvasir.library.quants import HubFile
from kvasir.library.ranges import Interrupted, RangeSource, WholeOnly
from kvasir.library.shelf import JOURNAL, LOCK, PARTIAL

CHUNK = 1 << 18
HASH_CHUNK = 1 << 22
LOOK_SECONDS = 0.2
"""Between two looks whether another process that fetches the same has ended."""
SPARE = 64 << 20
"""Bytes of the disk that a download leaves free."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Progress = Callable[[int, int], None]
"""Told how many bytes of a file are here, of how many. Raises to stop."""


class TransferPatience(msgspec.Struct, frozen=True):
    """Of a transfer, seconds."""

    stall: float = 20.0
    """Without a byte; then it is asked again."""
    n_tries: int = 6
    """In a row that bring nothing."""
    pause: float = 0.5
    """Before the second try, twice as long before each next."""
    tell: float = 0.2
    """Between two words of progress."""


def fetch_file(
    source: RangeSource,
    file: HubFile,
    place: Path,
    progress: Progress,
    patience: TransferPatience | None = None,
    checking: Callable[[], None] = lambda: None,
) -> None:
    """``file`` is at ``place``. Another process that fetches it is waited for; ``checking`` is
    called before its hash is. Raises ModelError: what came so far stays, unless it is wrong."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place, lambda: progress(_held(place), file.n_bytes)):
        if place.exists() and place.stat().st_size == file.n_bytes:
            progress(file.n_bytes, file.n_bytes)
            return
        partial = _beside(place, PARTIAL)
        _check_room(file, partial)
        try:
            transfer = _FileTransfer(source, file, place, patience or TransferPatience())
            try:
                transfer.run(progress)
            finally:
                transfer.close()
            checking()
            _check_hash(partial, file)
            os.replace(partial, place)
        except FileNotFoundError:
            raise ModelError(
                f"{file.name} was removed while it was fetched: pull it again",
                code="download_failed",
            ) from None
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise _full(place, file.n_bytes) from None
        _beside(place, JOURNAL).unlink(missing_ok=True)
        _sync_folder(place.parent)


class _FileTransfer:
    """One thread for each part, and the caller's, which tells."""

    def __init__(
        self, source: RangeSource, file: HubFile, place: Path, patience: TransferPatience
    ) -> None:
        self._source = source
        self._file = file
        self._patience = patience
        journal = _beside(place, JOURNAL)
        self._journal = PartJournal(_beside(place, PARTIAL), journal, file.n_bytes, file.digest)
        self._stopped = threading.Event()

    def run(self, progress: Progress) -> None:
        """Raises ModelError, OSError, and what ``progress`` raises."""
        for _ in range(self._patience.n_tries):
            try:
                return self._all(progress)
            except WholeOnly:  # what came of it is of no use: each cut begins it anew
                self._stopped.clear()
                self._journal.whole()
        raise self._gave_up(Interrupted("the answer, which is always the whole file, ended early"))

    def close(self) -> None:
        self._journal.close()

    def _all(self, progress: Progress) -> None:
        parts = [part for part in self._journal.parts if not part.is_done]
        with ThreadPoolExecutor(max(1, len(parts)), "kvasir-fetch") as pool:
            work = [pool.submit(self._part, part) for part in parts]
            try:
                while not all(each.done() for each in work):
                    if any(each.done() and each.exception() for each in work):
                        break
                    progress(self._journal.n_done, self._file.n_bytes)
                    self._stopped.wait(self._patience.tell)
            finally:
                self._stopped.set()
        self._stopped.clear()
        for each in work:
            each.result()
        progress(self._journal.n_done, self._file.n_bytes)

    def _part(self, part: FilePart) -> None:
        n_failed, waits = 0, self._patience
        while not part.is_done and not self._stopped.is_set():
            before = part.done
            try:
                self._read(part)
            except Interrupted as error:
                n_failed = 0 if part.done > before else n_failed + 1
                if n_failed >= waits.n_tries:
                    raise self._gave_up(error) from None
                pause = max(error.after, waits.pause * 2 ** (n_failed - 1) if n_failed else 0.0)
                self._stopped.wait(pause)
        self._journal.sync(part)

    def _read(self, part: FilePart) -> None:
        """Raises Interrupted when the answer ends early, or brings next to nothing."""
        stall = self._patience.stall
        with self._source.open(part.at, part.end, stall) as response:
            window, left = time.monotonic(), part.done
            while not part.is_done and not self._stopped.is_set():
                data = response.read1(CHUNK)
                if not data:
                    raise Interrupted(f"the answer ended at byte {part.at} of {part.end}")
                self._journal.write(part, data)
                now = time.monotonic()
                if now - window > stall:
                    if part.done - left < CHUNK:
                        raise Interrupted(f"{part.done - left} bytes in {now - window:.0f} s")
                    window, left = now, part.done

    def _gave_up(self, error: Interrupted) -> ModelError:
        done, n_bytes = format_size(self._journal.n_done), format_size(self._file.n_bytes)
        return ModelError(
            f"{self._source.url}: {error}, {self._patience.n_tries} times in a row. {done} of "
            f"{n_bytes} are here and stay: pull it again to go on",
            code="download_failed",
        )


def _beside(place: Path, end: str) -> Path:
    return place.with_name(place.name + end)


def _check_room(file: HubFile, partial: Path) -> None:
    """Raises ModelError before anything is fetched that would not find room."""
    held = partial.stat().st_blocks * 512 if partial.exists() else 0
    if file.n_bytes - held + SPARE > shutil.disk_usage(partial.parent).free:
        raise _full(partial.parent / file.name, file.n_bytes - held)


def _full(place: Path, n_bytes: int) -> ModelError:
    free = shutil.disk_usage(place.parent).free if place.parent.exists() else 0
    return ModelError(
        f"{place.name} needs {format_size(n_bytes)} of disk, {format_size(free)} are free at "
        f"{place.parent}: kvasir prune and kvasir rm give room back, KVASIR_CACHE names another "
        "disk",
        code="disk_full",
    )


def _check_hash(partial: Path, file: HubFile) -> None:
    """Raises ModelError; what is wrong is not kept."""
    kind, _, wanted = file.digest.partition(":")
    if kind not in ("sha256", "git"):
        return
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(usedforsecurity=False)
    if kind == "git":
        digest.update(b"blob %d\0" % file.n_bytes)
    with partial.open("rb") as stream:
        while data := stream.read(HASH_CHUNK):
            digest.update(data)
    if digest.hexdigest() != wanted:
        partial.unlink(missing_ok=True)
        partial.with_name(partial.name.removesuffix(PARTIAL) + JOURNAL).unlink(missing_ok=True)
        raise ModelError(
            f"{file.name}: its hash is {digest.hexdigest()}, the hub says {wanted}; it was not "
            "kept. Pull it again; if that does not help, a proxy or the mirror changes it",
            code="wrong_hash",
        )


def _sync_folder(folder: Path) -> None:
    """The new name survives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems know no such thing
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _held(place: Path) -> int:
    """Bytes that another process has fetched, about."""
    try:
        return _beside(place, PARTIAL).stat().st_blocks * 512
    except OSError:
        return 0


@contextlib.contextmanager
def _locked(place: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Exclusive among processes; the kernel lets go when the holder dies. ``wait`` is called again
    and again until then. The file goes with its holder, so who got a lock on one that is gone asks
    again."""
    path = _beside(place, LOCK)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, wait)
            if _is_same(descriptor, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        finally:
            os.close(descriptor)


def _lock(descriptor: int, wait: Callable[[], None]) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            time.sleep(LOOK_SECONDS)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
