"""What ``kvasir serve`` would meet with the options of the environment."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from kvasir.config.options import EngineOptions
from kvasir.config.serving import ServeOptions
from kvasir.config.settings import Sources
from kvasir.core.errors import ConfigError
from kvasir.doctor.finding import Finding, Scene


def options(scene: Scene) -> Iterator[Finding]:
    try:
        _read(scene)
    except ConfigError as error:
        yield Finding(
            "blocks",
            "an option of the environment cannot be read",
            error.message,
            "kvasir serve does not start",
            "correct it, or unset it",
        )


def port(scene: Scene) -> Iterator[Finding]:
    said = _options(scene)
    if said is None or said.uds or said.handover or not said.port:
        return
    try:
        is_free = scene.port_is_free(said.host, said.port)
    except OSError as error:
        yield Finding(
            "blocks",
            f"{said.host} is no address of this machine",
            f"bind(2): {error.strerror}",
            "kvasir serve does not start",
            "KVASIR_HOST=127.0.0.1, or 0.0.0.0 for all addresses",
        )
        return
    if not is_free:
        yield Finding(
            "blocks",
            f"port {said.port} is taken",
            f"bind(2) to {said.host}:{said.port}",
            "kvasir serve does not start, unless what listens there is yours already",
            f"kvasir ps --url http://{said.host}:{said.port} asks it; kvasir serve --port "
            f"{said.port + 1} takes another",
        )


def open_address(scene: Scene) -> Iterator[Finding]:
    said = _options(scene)
    if said is None or said.uds or _is_loopback(said.host):
        return
    if said.api_key is None and said.api_key_file is None:
        yield Finding(
            "costs",
            f"the server would be open to everybody who reaches {said.host}",
            "the address is no loopback one, and there is no key",
            "others use your machine, and read what shares its cache",
            "KVASIR_API_KEY=a secret, or kvasir keys create with KVASIR_API_KEY_FILE; or listen on "
            "127.0.0.1",
        )


def _options(scene: Scene) -> ServeOptions | None:
    try:
        return _read(scene)
    except ConfigError:
        return None


def _read(scene: Scene) -> ServeOptions:
    file = scene.variables.get("KVASIR_CONFIG")
    ours = {name: x for name, x in scene.variables.items() if name.startswith("KVASIR_")}
    sources = Sources(Path(file) if file else None, ours)
    return sources.read(EngineOptions, ServeOptions).of(ServeOptions)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
