"""What options come to before an engine is built: the model, and what the planner gives."""

from __future__ import annotations

from kvasir.checkpoints.loaded import LoadedModel
from kvasir.config.options import EngineOptions
from kvasir.config.resolved import ExecutorConfig
from kvasir.core.errors import ConfigError
from kvasir.engine.build import resolve_options
from kvasir.exec.backends import backend_of
from kvasir.exec.fake_backend import FAKE_FACTS

NAMES = ("executor", "threads", "isa", "cpu_affinity", "numa", "huge_pages")


def planned_executor(options: EngineOptions) -> ExecutorConfig:
    """Threads, level and CPUs for any model. Raises ConfigError."""
    asked = EngineOptions(**{name: getattr(options, name) for name in NAMES})
    return resolve_options(asked, FAKE_FACTS).executor


def opened(options: EngineOptions) -> LoadedModel:
    """The model that is measured. Raises ModelError, and ConfigError where no model is computed."""
    loaded = backend_of(options.executor).open(options.model)
    if loaded is None:
        raise ConfigError(
            f"the {options.executor} executor computes nothing: measure one that runs a model"
        )
    return loaded
