"""The program run by the NumPy references of its ops: the oracle of every other executor."""

from kvasir.exec.reference.executor import ReferenceExecutor, load_weights
from kvasir.exec.reference.interpreter import interpret

__all__ = ["ReferenceExecutor", "interpret", "load_weights"]
