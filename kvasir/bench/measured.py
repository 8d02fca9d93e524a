"""From options to a report: build the engine, measure, close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvasir.bench.ceilings import bandwidth_for, measure_ceilings
from kvasir.bench.report import describe_engine, report
from kvasir.bench.workload import Workload
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.engine.build import build_engine, load_model


def measured(
    kind: str,
    options: EngineOptions,
    measure: Callable[[Workload], dict[str, Any]],
    wants_ceilings: bool = True,
) -> dict[str, Any]:
    """The report of ``measure`` on a fresh engine; ceilings are taken right after it."""
    if options.executor == "fake":
        raise ConfigError("the fake executor computes nothing: measure cpu or reference")
    loaded = load_model(options.model)
    built = build_engine(options, loaded=loaded)
    try:
        results = measure(Workload(built))
    finally:
        built.engine.close()
    engine = describe_engine(loaded, built)
    if not wants_ceilings:
        return report(kind, engine, results)
    ceilings = measure_ceilings(built.config.executor.threads)
    shares = _shares(results, engine["weight_bytes"], ceilings)
    return report(kind, engine, results, ceilings=ceilings, **shares)


def _shares(
    results: dict[str, Any], weight_bytes: int, ceilings: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Decode reads every weight once a token: the share of the read bandwidth that this reaches.

    Weights in memory are counted with their size on disk. KV reads are not counted.
    """
    bandwidth = bandwidth_for(ceilings, weight_bytes)
    if "decode" not in results or bandwidth is None:
        return {}
    rate = weight_bytes * results["decode"]["tokens_per_second"]["median"] / 1e9
    return {"decode_read": {"GB/s": round(rate, 2), "share": round(rate / bandwidth, 3)}}
