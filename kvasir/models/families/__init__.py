"""The families that run: each ``Family`` that a file here has."""

from importlib import import_module
from pkgutil import iter_modules

from kvasir.models.families.llama import LLAMA
from kvasir.models.family import Family


def _families() -> tuple[Family, ...]:
    """First the one whose relatives most are, last those that see; of those that have one name in
    files the one that is told by more tensors goes first."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    values = [value for module in modules for value in vars(module).values()]
    found = {value.name: value for value in values if isinstance(value, Family)}
    return tuple(sorted(found.values(), key=_place))


def _place(family: Family) -> tuple[bool, bool, str, bool]:
    name = family.told_from or family.name
    return family.tower is not None, family is not LLAMA, name, not family.told_from


FAMILIES = _families()
