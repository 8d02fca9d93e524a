"""All backends by their names, which are those of the option ``executor``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kvasir.core.errors import ConfigError
from kvasir.exec.backend import Backend
from kvasir.exec.cpu.backend import CPU
from kvasir.exec.fake_backend import FakeBackend
from kvasir.exec.reference.backend import REFERENCE

BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {"cpu": CPU, "reference": REFERENCE, "fake": FakeBackend()}
)


def backend_of(name: str) -> Backend:
    """Raises ConfigError on an unknown name."""
    if name not in BACKENDS:
        raise ConfigError(f"executor is {name!r}: use one of {', '.join(BACKENDS)}")
    return BACKENDS[name]
