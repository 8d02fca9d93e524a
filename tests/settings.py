"""What the native executor runs with, whatever the environment asks for."""

from __future__ import annotations

from kvasir.config.cpu import CpuConfig, CpuPlanner
from kvasir.config.hardware import Hardware
from kvasir.config.options import EngineOptions


def cpu_settings(options: EngineOptions, hardware: Hardware, reasons: dict[str, str]) -> CpuConfig:
    return CpuPlanner(options, hardware, reasons).config(None, None)
