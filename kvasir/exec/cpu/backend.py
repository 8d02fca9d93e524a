"""The native core as a backend."""

from __future__ import annotations

from kvasir import _native
from kvasir.config.cpu import CpuConfig, CpuPlanner
from kvasir.config.env import read_env
from kvasir.config.hardware import Hardware, probe
from kvasir.config.options import EngineOptions
from kvasir.config.resolved import EngineConfig
from kvasir.core.errors import ConfigError
from kvasir.exec.backend import ProgramBackend, Wishes
from kvasir.exec.base import Executor
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.packed import PackedCache
from kvasir.exec.cpu.passes import lower_passes
from kvasir.exec.cpu.placement import placement
from kvasir.ir.bundle import Bundle
from kvasir.weights.bind import Binding


def cpu_hardware() -> Hardware:
    return probe(tuple(_native.levels()))


def _settings(options: EngineOptions, hardware: Hardware, reasons: dict[str, str]) -> CpuConfig:
    env = read_env()
    return CpuPlanner(options, hardware, reasons).config(env.isa, env.cache)


def _make(program: Bundle, binding: Binding, config: EngineConfig, wishes: Wishes) -> CpuExecutor:
    cpu = config.executor
    if not isinstance(cpu, CpuConfig):
        raise ConfigError(f"the cpu executor cannot run with {cpu}")
    folder, limit = cpu.packed_cache, cpu.packed_cache_bytes
    settings = CpuSettings(
        cpu.threads,
        cpu.isa,
        PackedCache(folder, limit) if folder else None,
        wishes.hashes,
        cpu.affinity,
        cpu.huge_pages,
        cpu.tuning,
    )
    return CpuExecutor(program, binding, config.sizes, settings)


def _kernels(executor: Executor) -> str:
    return executor.tuning.describe() if isinstance(executor, CpuExecutor) else ""


CPU = ProgramBackend("cpu", cpu_hardware, lower_passes, placement, _make, _settings, _kernels)
