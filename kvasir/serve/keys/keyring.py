"""All keys of a running server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from kvasir.config.serving import ServeOptions
from kvasir.core.errors import RequestError
from kvasir.serve.keys.caller import ANYONE, Caller
from kvasir.serve.keys.key import (
    ADMIN_KEY,
    API_KEY,
    OF_CLIENTS,
    OF_OPERATORS,
    UNLIMITED,
    Key,
    Secret,
    digest,
    is_over,
)
from kvasir.serve.keys.keyfile import Change, KeyFile, Value
from kvasir.serve.keys.meter import KeyMeter


class Keyring:
    """Those of the options, which always hold, and those of the file."""

    def __init__(
        self,
        api_key: str | None = None,
        admin_key: str | None = None,
        file: KeyFile | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError when the file cannot be read."""
        self._file = file
        self._clock = clock
        self._fixed = [
            Key(key_id, scopes, (Secret(digest(secret.encode())),), created=0)
            for key_id, secret, scopes in (
                (API_KEY, api_key, OF_CLIENTS),
                (ADMIN_KEY, admin_key, OF_OPERATORS),
            )
            if secret is not None
        ]
        self.is_open = api_key is None and file is None
        """Whether clients need no key."""
        self._meters: dict[str, KeyMeter] = {}
        self.keys: Mapping[str, Key] = {}
        """Of the file."""
        self._by_digest: dict[str, tuple[Key, Secret]] = {}
        self.reload()

    def reload(self) -> None:
        """Reads the file again. Raises ConfigError when it cannot be read; the keys stay as they
        were then. What was sent with a key stays counted."""
        self._adopt({} if self._file is None else self._file.read())

    async def edit(self, change: Change[Value]) -> Value:
        """Changes the file, and then what holds. Raises RequestError (409) without a file,
        ConfigError, and what ``change`` raises."""
        if self._file is None:
            raise RequestError(
                "the server has no key file: start it with --api-key-file",
                code="no_key_file",
                status=409,
            )
        # Imported now: a server opens its keys before its engine starts, and asyncio takes 20 ms.
        from asyncio import to_thread

        value = await to_thread(self._file.edit, change)
        self.reload()
        return value

    def client(self, secret: bytes) -> Caller:
        """Who asks at the clients' address. Raises RequestError (401)."""
        return ANYONE if self.is_open else self.known(secret)

    def known(self, secret: bytes) -> Caller:
        """Whose ``secret`` it is. Found by its digest: how long that takes says nothing about any
        secret. Raises RequestError (401)."""
        found = self._by_digest.get(digest(secret))
        if found is None:
            raise _refused(
                "a valid API key is needed: send Authorization: Bearer KEY", "invalid_api_key"
            )
        key, kept = found
        now = self._clock()
        if is_over(key.expires, now) or is_over(kept.expires, now):
            raise _refused("this API key has expired: ask for another", "expired_api_key")
        return Caller(key.id, frozenset(key.scopes), key.limits)

    def named(self, key_id: str) -> Caller:
        """The key of that id; without scopes, but with its limits, where it holds no longer."""
        if not key_id:
            return ANYONE
        key = next((key for key in (*self._fixed, *self.keys.values()) if key.id == key_id), None)
        if key is None:
            return Caller(key_id, frozenset())
        holds = key.state(self._clock()) == "active"
        return Caller(key.id, frozenset(key.scopes if holds else ()), key.limits)

    def meter(self, caller: Caller) -> KeyMeter:
        """Of its key; one without limits for who has none."""
        return self._meters.get(caller.key_id) or KeyMeter(UNLIMITED)

    def _adopt(self, keys: Mapping[str, Key]) -> None:
        every = [*self._fixed, *keys.values()]
        self.keys = keys
        self._by_digest = {
            secret.sha256: (key, secret) for key in reversed(every) for secret in key.secrets
        }
        self._meters = {key.id: self._meter(key) for key in every if key.secrets}

    def _meter(self, key: Key) -> KeyMeter:
        found = self._meters.get(key.id)
        if found is None:
            return KeyMeter(key.limits)
        found.follow(key.limits)
        return found


def open_keyring(options: ServeOptions) -> Keyring:
    """Raises ConfigError when the key file cannot be read."""
    path = options.api_key_file
    file = None if path is None else KeyFile(path)
    return Keyring(options.api_key, options.admin_key, file)


def _refused(message: str, code: str) -> RequestError:
    return RequestError(message, code=code, status=401)
