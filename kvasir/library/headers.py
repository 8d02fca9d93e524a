"""The header of a GGUF file on a hub: what a model is, of its first megabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from kvasir.core.errors import ModelError
from kvasir.formats.gguf import MAGIC, open_gguf
from kvasir.library.quants import HubFile
from kvasir.library.ranges import Interrupted, RangeSource, WholeOnly

FIRST_BYTES = 1 << 20
MAX_BYTES = 128 << 20
"""The largest vocabularies take 20 MB."""
GROWTH = 4
SECONDS = 20.0
N_TRIES = 4


@contextmanager
def fetched_header(source: RangeSource, file: HubFile, scratch: Path) -> Iterator[tuple[Path, int]]:
    """A file of the right size whose header is there and whose tensors are holes, and the bytes of
    the header. It goes with the block. Raises ModelError when it is no GGUF file, or is not sent.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="header-", dir=scratch) as folder:
        path = Path(folder) / Path(file.name).name
        n_bytes, wanted = 0, min(FIRST_BYTES, file.n_bytes)
        with path.open("wb") as stream:
            stream.truncate(file.n_bytes)
        while True:
            data = _again(partial(_read, source, n_bytes, wanted))
            with path.open("r+b") as stream:
                stream.seek(n_bytes)
                stream.write(data)
            n_bytes = wanted
            n_header = _header_bytes(path, n_bytes, is_last=n_bytes >= min(file.n_bytes, MAX_BYTES))
            if n_header is not None:
                break
            wanted = min(n_bytes * GROWTH, file.n_bytes, MAX_BYTES)
        yield path, n_header


def _header_bytes(path: Path, n_bytes: int, *, is_last: bool) -> int | None:
    """Where the tensors of ``path`` begin; None when that is behind the first ``n_bytes``, which
    are all that is there. Raises ModelError when it ``is_last``."""
    try:
        start = open_gguf(path).data_start
    except ModelError as error:
        if is_last or not _is_gguf(path):
            why = error.message.replace(str(path), path.name)
            raise ModelError(why, code=error.code) from None
        return None
    if start <= n_bytes:
        return start
    if is_last:
        raise ModelError(f"{path.name}: its header is longer than {n_bytes} bytes")
    return None


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def _read(source: RangeSource, start: int, end: int) -> bytes:
    with source.open(start, end, SECONDS) as response:
        data = response.read(end - start)
    if len(data) != end - start:
        raise Interrupted(f"the answer ended at byte {start + len(data)} of {end}")
    return data


def _again(read: Callable[[], bytes]) -> bytes:
    for attempt in range(N_TRIES):
        try:
            return read()
        except Interrupted as error:
            if attempt == N_TRIES - 1:
                raise ModelError(
                    f"the header of the model cannot be fetched: {error}", code="download_failed"
                ) from None
        except WholeOnly:
            raise ModelError(
                "the server sends no ranges, so nothing can be said before the whole file is here: "
                "--force fetches it",
                code="download_failed",
            ) from None
    raise AssertionError("unreachable")
