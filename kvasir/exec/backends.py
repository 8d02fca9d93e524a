"""All backends by their names, which are those of the option ``executor``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvasir.core.errors import ConfigError
from kvasir.exec.backend import Backend


def _cpu() -> Backend:
    from kvasir.exec.cpu.backend import CPU

    return CPU


def _reference() -> Backend:
    from kvasir.exec.reference.backend import REFERENCE

    return REFERENCE


def _fake() -> Backend:
    from kvasir.exec.fake_backend import FakeBackend

    return FakeBackend()


BACKENDS: Mapping[str, Callable[[], Backend]] = MappingProxyType(
    {"cpu": _cpu, "reference": _reference, "fake": _fake}
)
"""Each is imported when it is asked for: a start pays for one."""


def backend_of(name: str) -> Backend:
    """Raises ConfigError on an unknown name."""
    if name not in BACKENDS:
        raise ConfigError(f"executor is {name!r}: use one of {', '.join(BACKENDS)}")
    return BACKENDS[name]()
