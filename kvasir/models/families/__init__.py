"""The families that run: each ``Family`` that a file here has."""

from importlib import import_module
from pkgutil import iter_modules

from kvasir.models.family import Family


def _families() -> tuple[Family, ...]:
    """By name; of those that have one in files, the one that is told by more tensors goes first."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    values = [value for module in modules for value in vars(module).values()]
    found = {value.name: value for value in values if isinstance(value, Family)}
    return tuple(sorted(found.values(), key=lambda x: (x.told_from or x.name, not x.told_from)))


FAMILIES = _families()
