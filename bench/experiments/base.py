"""What an experiment is: a claim, a way to measure it, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kvasir.config.options import EngineOptions

Json = dict[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to run an experiment."""

    options: EngineOptions = field(default_factory=EngineOptions)
    """Model, threads and arithmetic; each experiment decides the rest."""
    quick: bool = False
    """Small sizes that only show that it works: no figure of such a run means anything."""

    def pick(self, full: Value, quick: Value) -> Value:
        """A size of the experiment."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was measured. Times in seconds, rates per second, memory in bytes."""

    measured: str
    """The figures that answer the claim, in words."""
    conditions: str
    """What must be known to judge them."""
    summary: Json
    points: Sequence[Json]
    """What the chart shows, one entry for each x."""
    met: bool
    """Whether the target is reached."""
    identical: bool | None
    """Whether all arms gave the same tokens; None where their arithmetic differs on purpose, or
    nothing is computed."""
    engine: Json
    """The model and what its engine was resolved to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """How the points are drawn: ``lines`` maps keys of the points to labels."""

    x: str
    x_label: str
    y_label: str
    lines: dict[str, str]
    kind: str = "line"
    """"line" or "bar"."""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """``run`` raises KvasirError when the model or machine has no room for it."""

    name: str
    title: str
    claim: str
    """What the literature says, and who."""
    target: str
    """What this engine is to reach."""
    uses_model: bool
    """Whether it needs a real model; else it runs on the fake executor in virtual time."""
    seconds: int
    """About how long it takes on two cores."""
    chart: Chart
    run: Callable[[Settings], Outcome]
