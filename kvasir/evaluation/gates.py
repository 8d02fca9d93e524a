"""Conditions on figures, for scripts that must not go on with a model that is too far off."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from kvasir.core.errors import ConfigError, KvasirError
from kvasir.evaluation.figures import Against, Figures

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
)
_PAIRED: Mapping[str, Callable[[Against], float]] = MappingProxyType(
    {
        "kld": lambda x: x.kld.value,
        "kld_max": lambda x: x.kld_max,
        "top1": lambda x: x.top1.value,
        "ppl_ratio": lambda x: x.ppl_ratio.value,
        "rms_dp": lambda x: x.rms_dp,
    }
)
"""Figures that need a reference."""
_GATE = re.compile(r"\s*([a-z0-9_]+)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*")


class UnmetError(KvasirError):
    """A figure breaks a bound of --require."""

    code = "requirement_unmet"


class Requirement(msgspec.Struct, frozen=True):
    name: str
    operator: str
    bound: float

    @property
    def is_paired(self) -> bool:
        return self.name in _PAIRED

    def fault(self, figures: Figures) -> str:
        """The figure and the bound that it breaks; empty where it holds. NaN breaks every bound."""
        if not self.is_paired:
            value = figures.ppl
        elif figures.against is None:
            raise ConfigError(f"{self.name} compares with a model: give --reference")
        else:
            value = _PAIRED[self.name](figures.against)
        if _OPERATORS[self.operator](value, self.bound):
            return ""
        return f"{self.name} is {value:.6g}, required {self.operator} {self.bound:g}"


def parse_gate(text: str) -> Requirement:
    """``kld<=0.02`` and the like. Raises ConfigError."""
    found = _GATE.fullmatch(text)
    names = ("ppl", *_PAIRED)
    try:
        bound = float(found[3]) if found else math.nan
    except ValueError:
        bound = math.nan
    if found is None or found[1] not in names or not math.isfinite(bound):
        raise ConfigError(
            f"--require is {text!r}: expected a figure ({', '.join(names)}), "
            f"one of {' '.join(_OPERATORS)} and a number, such as 'kld<=0.02'"
        )
    return Requirement(found[1], found[2], bound)
