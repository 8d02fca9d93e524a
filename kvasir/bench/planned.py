"""What the planner gives an engine, for measurements that build none."""

from __future__ import annotations

from kvasir.config.options import EngineOptions
from kvasir.config.resolved import ExecutorConfig
from kvasir.engine.build import resolve_options
from kvasir.exec.fake_backend import FAKE_FACTS

NAMES = ("executor", "threads", "isa", "cpu_affinity", "numa", "huge_pages")


def planned_executor(options: EngineOptions) -> ExecutorConfig:
    """Threads, level and CPUs for any model. Raises ConfigError."""
    asked = EngineOptions(**{name: getattr(options, name) for name in NAMES})
    return resolve_options(asked, FAKE_FACTS).executor
