"""The file of the keys: JSON that is only ever replaced as a whole, readable by its owner alone."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Literal, TypeVar

import msgspec

from kvasir.core.errors import ConfigError
from kvasir.serve.keys.key import ADMIN_KEY, API_KEY, MAX_KEYS, Key, Keys

MODE = 0o600
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
Value = TypeVar("Value")
Change = Callable[[Keys], tuple[Keys, Value]]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[Key, ...]
    version: Literal[1] = 1


class KeyFile:
    """Several processes may change it: each waits for the one before."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.realpath(path))
        """The file itself where the path is a link: that is what is replaced."""

    def read(self) -> Keys:
        """Raises ConfigError when it is missing, damaged, or others may write it."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & OTHERS_WRITE:
                    raise ConfigError(
                        f"others may write the key file {self.path}: chmod 600 it, after a look at "
                        "what is in it"
                    )
                data = file.read()
        except FileNotFoundError:
            raise ConfigError(
                f"there is no key file {self.path}: make one with kvasir keys create"
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot read the key file {self.path}: {error.strerror}") from None
        return _decoded(data, self.path)

    def edit(self, change: Change[Value]) -> Value:
        """What ``change`` returns beside the keys, which are on disk then. Where there is no file
        there are no keys yet. Raises as ``read``, and ConfigError when it cannot be written."""
        try:
            with self._locked():
                keys, value = change(self.read() if self.path.exists() else {})
                self._write(keys)
                return value
        except OSError as error:
            raise ConfigError(f"cannot write the key file {self.path}: {error.strerror}") from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The file itself cannot be locked: it is replaced."""
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, keys: Mapping[str, Key]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_Document(tuple(keys.values()))), indent=1)
        scratch = self.path.with_name(f".{self.path.name}.{token_hex(8)}")
        file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        try:
            with os.fdopen(file, "wb") as out:
                self._keep_owner(out.fileno())
                out.write(data + b"\n")
                out.flush()
                os.fsync(out.fileno())
            os.replace(scratch, self.path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _keep_owner(self, file: int) -> None:
        """Root may write for the server's user, who reads it."""
        if self.path.exists() and os.geteuid() == 0:
            owner = self.path.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)


def _decoded(data: bytes, path: Path) -> Keys:
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"the key file {path} is damaged: {error}") from None
    keys = {key.id: key for key in document.keys}
    digests = [secret.sha256 for key in document.keys for secret in key.secrets]
    if len(keys) < len(document.keys) or len(set(digests)) < len(digests):
        raise ConfigError(f"the key file {path} is damaged: an id or a secret occurs twice")
    if keys.keys() & {API_KEY, ADMIN_KEY}:
        raise ConfigError(f"the key file {path} is damaged: {API_KEY} and {ADMIN_KEY} are no ids")
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"the key file {path} holds {len(keys)} keys, the most are {MAX_KEYS}")
    return keys
