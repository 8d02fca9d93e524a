"""The oracle of the native core: the same program, in NumPy."""

from __future__ import annotations

from kvasir.config.hardware import Hardware, probe
from kvasir.config.resolved import EngineConfig
from kvasir.exec.backend import ProgramBackend, Wishes
from kvasir.exec.cpu.passes import lower_passes
from kvasir.exec.cpu.placement import placement
from kvasir.exec.reference.executor import ReferenceExecutor, load_weights
from kvasir.ir.bundle import Bundle
from kvasir.weights.bind import Binding


def _hardware() -> Hardware:
    return probe(())


def _make(
    program: Bundle, binding: Binding, config: EngineConfig, wishes: Wishes
) -> ReferenceExecutor:
    return ReferenceExecutor(program, load_weights(program, binding), config.sizes)


REFERENCE = ProgramBackend("reference", _hardware, lower_passes, placement, _make)
