"""What the native executor runs with: threads and their places, ISA level, packed weights."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from kvasir.config.affinity import FREE, Affinity, decide, parse_affinity
from kvasir.config.hardware import Hardware
from kvasir.config.options import EngineOptions
from kvasir.config.sizes import parse_size
from kvasir.core.errors import ConfigError

PACKED_CACHE_OFF = "off"
TuningMode = Literal["off", "cached", "auto"]
TUNING: dict[TuningMode, str] = {
    "off": "off: kernels as they are without measuring",
    "cached": "cached: kernels that were chosen before, none is measured",
    "auto": "auto: kernels are measured in the first steps of each number of rows, and kept",
}


class CpuConfig(msgspec.Struct, frozen=True):
    threads: int
    isa: str
    packed_cache: Path | None = None
    """Folder of packed weights; None packs at every start."""
    packed_cache_bytes: int = 0
    """Of all files in it."""
    affinity: Affinity = FREE
    huge_pages: bool = True
    """Ask for them; else refuse them."""
    tuning: TuningMode = "auto"
    leaves_python_free: bool = True


class CpuPlanner(msgspec.Struct, frozen=True):
    """Decides one value after the other and writes down why."""

    options: EngineOptions
    hardware: Hardware
    reasons: dict[str, str]

    def config(self, env_isa: str | None, cache: Path | None) -> CpuConfig:
        """``env_isa``: the level that the environment asks for; ``cache``: the folder for what is
        kept from start to start. Raises ConfigError."""
        threads = self.threads()
        return CpuConfig(
            threads,
            self.isa(env_isa),
            self.packed_cache(cache),
            parse_size(self.options.packed_cache_size, "packed_cache_size"),
            self.affinity(threads),
            self.huge_pages(),
            self.tuning(),
        )

    def threads(self) -> int:
        asked, machine = self.options.threads, self.hardware
        why = f"cores among {machine.n_cpus} usable CPUs" if asked is None else "as asked"
        listed = parse_affinity(self.options.cpu_affinity)
        if asked is None and listed is not None:
            asked, why = len(listed), "CPUs of cpu_affinity"
        threads = machine.n_cores if asked is None else asked
        self.reasons["threads"] = f"{threads}: {why}"
        return threads

    def isa(self, env_isa: str | None) -> str:
        levels = self.hardware.isa_levels
        if not levels:
            raise ConfigError(
                "this core has no kernels that this CPU can run: make serve built it for another "
                "CPU alone; build all with make env"
            )
        level = self.options.isa or env_isa or levels[-1]
        if level not in levels:
            has = ", ".join(levels)
            if "scalar" in levels:
                raise ConfigError(f"isa {level!r} cannot run on this CPU: use one of {has}")
            raise ConfigError(
                f"isa {level!r} is not in this core, which make serve built for this CPU alone: "
                f"use one of {has}, or build all with make env"
            )
        by_env = "KVASIR_ISA" if env_isa else "the best of this CPU"
        self.reasons["isa"] = f"{level}: {'as asked' if self.options.isa else by_env}"
        return level

    def affinity(self, threads: int) -> Affinity:
        options = self.options
        found = decide(options.cpu_affinity, options.numa, self.hardware.topology, threads)
        self.reasons["cpu_affinity"], self.reasons["numa"] = found.why, found.memory
        return found

    def huge_pages(self) -> bool:
        """Whether to ask for them."""
        mode, asked = self.hardware.huge_pages, self.options.huge_pages
        if asked == "none":
            self.reasons["huge_pages"] = "refused: as asked"
        elif mode in ("always", "madvise"):
            self.reasons["huge_pages"] = f"asked for: the system gives them ({mode})"
        else:
            self.reasons["huge_pages"] = f"asked for: the system gives none ({mode or 'unknown'})"
        return asked != "none"

    def tuning(self) -> TuningMode:
        asked = self.options.tuning
        self.reasons["tuning"] = TUNING[asked]
        return asked

    def packed_cache(self, cache: Path | None) -> Path | None:
        asked = self.options.packed_cache
        if asked in (None, PACKED_CACHE_OFF):
            folder = cache / "packed" if cache and asked is None else None
        else:
            folder = Path(str(asked)).expanduser()
        why = "default" if asked is None else "as asked"
        self.reasons["packed_cache"] = f"{folder or PACKED_CACHE_OFF}: {why}"
        return folder
