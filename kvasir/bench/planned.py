"""What the planner gives an engine, for measurements that build none."""

from __future__ import annotations

from kvasir import _native
from kvasir.config.env import read_env
from kvasir.config.hardware import probe
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import resolve
from kvasir.config.resolved import ExecutorConfig
from kvasir.engine.build import FAKE_FACTS

NAMES = ("executor", "threads", "isa", "cpu_affinity", "numa", "huge_pages")


def planned_executor(options: EngineOptions) -> ExecutorConfig:
    """Threads, level and CPUs for any model. Raises ConfigError."""
    asked = EngineOptions(**{name: getattr(options, name) for name in NAMES})
    hardware = probe(tuple(_native.levels()))
    return resolve(asked, FAKE_FACTS, hardware, isa=read_env().isa).executor
