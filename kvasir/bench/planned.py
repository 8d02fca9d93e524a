"""What the planner gives an engine, for measurements that build none."""

from __future__ import annotations

from kvasir.config.options import EngineOptions
from kvasir.config.resolved import ExecutorConfig
from kvasir.engine.build import FAKE_FACTS, resolve_options

NAMES = ("executor", "threads", "isa", "cpu_affinity", "numa", "huge_pages")


def planned_executor(options: EngineOptions) -> ExecutorConfig:
    """Threads, level and CPUs for any model. Raises ConfigError."""
    asked = EngineOptions(**{name: getattr(options, name) for name in NAMES})
    return resolve_options(asked, FAKE_FACTS).executor
