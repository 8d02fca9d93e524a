"""Pulls for the command line: a table of what would fit, and progress, for people or as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvasir.cli.terminal import show
from kvasir.config.sizes import format_size
from kvasir.library.hub import open_hub
from kvasir.library.names import HubName
from kvasir.library.pull import Puller, Told
from kvasir.library.quants import Fit, Fits, HubFile, Quant
from kvasir.library.shelf import Shelf
from kvasir.library.stored import StoredModel
from kvasir.library.transfer import Progress

JSON_SECONDS = 0.25
"""Between two lines of progress."""
LONG_BYTES = 1 << 30
"""Whose hash takes a second."""


def pulled(name: HubName, *, force: bool = False, as_json: bool = False) -> StoredModel:
    """The model called ``name``, whole. Raises ModelError."""
    shelf = Shelf()
    hub = open_hub()
    if as_json:
        said = Lines(sys.stdout)
        said.say({"status": "pulling manifest"})
        model = Puller(shelf, hub, _fits_here, said.told()).pull(name, force=force)
        said.say({"status": "writing manifest"})
        said.say({"status": "success"})
        return model
    with Screen() as screen:
        return Puller(shelf, hub, _fits_here, screen.told()).pull(name, force=force)


def _fits_here(*what: Any) -> Fits:
    # Imported now: it brings the kernels and all families, 0.3 s, which a pull alone needs.
    from kvasir.cli.fit import fits_here

    return fits_here(*what)


class Lines:
    """NDJSON, in Ollama's words."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def say(self, value: dict[str, Any]) -> None:
        self._stream.write(msgspec.json.encode(value).decode() + "\n")
        self._stream.flush()

    def told(self) -> Told:
        return Told(self.fits, self.file, self.checking)

    def fits(self, found: Sequence[Quant], fits: Fits, taken: Quant) -> None:
        """Nothing: clients know no such line."""

    def checking(self, file: HubFile) -> None:
        self.say({"status": "verifying sha256 digest"})

    def file(self, file: HubFile) -> Progress:
        digest = file.digest or file.name
        last = 0.0

        def progress(done: int, n_bytes: int) -> None:
            nonlocal last
            now = time.monotonic()
            if done == n_bytes or now - last >= JSON_SECONDS:
                last = now
                said = {"status": f"pulling {digest[:19]}", "digest": digest, "total": n_bytes}
                self.say({**said, "completed": done})

        return progress


class Screen:
    """A table, then a bar for each file, on standard error."""

    def __enter__(self) -> Screen:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import (
            Progress as Bars,
        )

        console = Console(stderr=True)
        columns = (
            *(TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn()),
            *(TransferSpeedColumn(), TimeRemainingColumn()),
        )
        self._bars = Bars(*columns, console=console, disable=not console.is_terminal)
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def told(self) -> Told:
        return Told(self.fits, self.file, self.checking)

    def checking(self, file: HubFile) -> None:
        if file.n_bytes >= LONG_BYTES:
            self._bars.add_task(f"checking {Path(file.name).name}", total=None)

    def fits(self, found: Sequence[Quant], fits: Fits, taken: Quant) -> None:
        if fits:
            self._bars.stop()
            show(fits_text(found, fits, taken), sys.stderr)
            self._bars.start()

    def file(self, file: HubFile) -> Progress:
        if self._bars.disable:
            show(f"fetching {file.name}, {format_size(file.n_bytes)}\n", sys.stderr)
        task = self._bars.add_task(Path(file.name).name, total=file.n_bytes)

        def progress(done: int, n_bytes: int) -> None:
            self._bars.update(task, completed=done)

        return progress


HEAD = ("", "tag", "size", "tok/s", "max_model_len", "tokens of KV")


def fits_text(found: Sequence[Quant], fits: Fits, taken: Quant) -> str:
    """A row for each quantization; the one that is taken has a star."""
    rows = [HEAD, *(_row(quant, fits.get(quant.tag), quant is taken) for quant in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1])]
        cells += [x.rjust(width) for x, width in zip(row[2:], widths[2:], strict=True)]
        lines.append(" ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _row(quant: Quant, fit: Fit | None, is_taken: bool) -> tuple[str, ...]:
    head = ("*" if is_taken else "", quant.tag, format_size(quant.n_bytes))
    if fit is None:
        return (*head, "in several files", "", "")
    if fit.refusal:
        return (*head, "does not start", "", "")
    rate = "" if fit.tokens_per_second is None else f"{fit.tokens_per_second:.3g}"
    return (*head, rate, str(fit.max_model_len), str(fit.n_tokens))
