"""What was chosen for a model on a machine: a small file beside its packed weights.

One line of JSON behind one with its digest. Nothing in it decides bits. A file that is damaged,
too long or of another key, or that names what this version does not have, counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkstemp

import msgspec

from kvasir import _native

_log = logging.getLogger("kvasir.tuning")

SUFFIX = ".tuned"
MAX_BYTES = 20_000
MAX_FILES = 256
"""In a folder; the one written longest ago goes first."""
CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPU_FIELDS = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode")
VARIANTS: tuple[str, ...] = tuple(name for name, _ in _native.variants())
"""Names by number; the first is used where nothing was measured."""


class ChosenVariant(msgspec.Struct, frozen=True, array_like=True):
    variant: str
    gain: float
    """Share of the time of the first variant that it saves, as measured."""


Choices = Mapping[str, Mapping[int, ChosenVariant]]
"""Shape of a site -> class of rows -> what was chosen."""


class _TunedDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    choices: dict[str, dict[int, ChosenVariant]]


class TunedFile(msgspec.Struct, frozen=True):
    folder: Path
    key: str

    @classmethod
    def of(cls, folder: Path, content_hash: str, threads: int, level: str) -> TunedFile:
        """Of a model on this machine, by all that decides which variant is fastest."""
        parts = (
            content_hash,
            *cpu_identity(),
            str(threads),
            level,
            _build(),
            repr(_native.variants()),
        )
        key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
        return cls(folder, key)

    @property
    def path(self) -> Path:
        return self.folder / f"{self.key}{SUFFIX}"

    def load(self) -> Choices | None:
        """None without a file, and where it cannot be used: with a line in the log."""
        try:
            with self.path.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
            return self._read(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            _log.warning("kernels chosen before, %s: %s; they are measured again", self.path, error)
            return None

    def _read(self, data: bytes) -> Choices:
        """Raises ValueError, MsgspecError and, for what is too deep, RecursionError."""
        digest, _, text = data.partition(b"\n")
        if len(data) > MAX_BYTES:
            raise ValueError(f"longer than {MAX_BYTES} bytes")
        if digest != _digest(text):
            raise ValueError("damaged: it does not have its digest")
        document = msgspec.json.decode(text, type=_TunedDocument)
        if document.key != self.key:
            raise ValueError("of another model or machine")
        return document.choices

    def store(self, choices: Choices) -> bool:
        """Whole or not at all: whether it is there. A failure is a line in the log."""
        document = _TunedDocument(
            self.key, {shape: dict(found) for shape, found in choices.items()}
        )
        text = msgspec.json.encode(document)
        data = _digest(text) + b"\n" + text
        try:
            if len(data) > MAX_BYTES:
                raise OSError(f"{len(data)} bytes, more than {MAX_BYTES}")
            self._write(data)
        except OSError as error:
            _log.warning("chosen kernels are not kept in %s: %s", self.folder, error)
            return False
        return True

    def _write(self, data: bytes) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file, name = mkstemp(f"{SUFFIX}.unfinished", dir=self.folder)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(data)
            Path(name).rename(self.path)
        finally:
            Path(name).unlink(missing_ok=True)
        files = sorted(self.folder.glob(f"*{SUFFIX}*"), key=_written)
        for path in files[:-MAX_FILES]:
            path.unlink(missing_ok=True)


def cpu_identity(cpuinfo: Path = CPUINFO, caches: Path = CACHES) -> tuple[str, ...]:
    """What the system tells of the first CPU: a name that a hypervisor gave says little, so also
    family, model, stepping and microcode; and its caches."""
    found = dict.fromkeys(CPU_FIELDS, "")
    with contextlib.suppress(OSError), cpuinfo.open(encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if not line.strip():
                break
            if name.strip() in found:
                found[name.strip()] = value.strip()
    sizes = []
    with contextlib.suppress(OSError):  # of a file that a container hides
        for folder in sorted(caches.glob("index*")):
            parts = ((folder / part).read_text().strip() for part in ("level", "type", "size"))
            sizes.append(" ".join(parts))
    return (found["model name"] or platform.processor(), *found.values(), *sizes)


def _build() -> str:
    """Of the native core: kernels of another build are measured again."""
    stat = Path(_native.__file__).stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # removed by another process
        return 0


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()
