"""From options to a report: build the engine, measure, close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvasir.bench.ceilings import Ceilings, bandwidth_for, measure_ceilings
from kvasir.bench.planned import opened
from kvasir.bench.report import describe_engine, report
from kvasir.bench.workload import Workload
from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine
from kvasir.exec.cpu.backend import CPU
from kvasir.ir.cost import weights_read
from kvasir.ir.ops import Sizes


def measured(
    kind: str,
    options: EngineOptions,
    measure: Callable[[Workload], dict[str, Any]],
    wants_ceilings: bool = True,
) -> dict[str, Any]:
    """The report of ``measure`` on a fresh engine; ceilings are taken right after it."""
    loaded = opened(options)
    built = build_engine(options, loaded=loaded)
    try:
        results = measure(Workload(built))
    finally:
        built.engine.close()
    engine = describe_engine(loaded, built)
    if not wants_ceilings:
        return report(kind, engine, results)
    ceilings = measure_ceilings(built.config.executor.threads)
    if "decode" not in results:
        return report(kind, engine, results, ceilings=ceilings)
    program, _ = CPU.program(loaded, built.config)
    shares = decode_read(results, weights_read(program, Sizes(1, 1)), ceilings)
    return report(kind, engine, results, ceilings=ceilings, **shares)


def decode_read(results: dict[str, Any], n_bytes: float, ceilings: Ceilings) -> dict[str, Any]:
    """``n_bytes`` of weights are read for each token: the share of the read bandwidth that decode
    reaches so. KV reads are not counted."""
    bandwidth = bandwidth_for(ceilings, int(n_bytes))
    if bandwidth is None:
        return {}
    rate = n_bytes * results["decode"]["tokens_per_second"]["median"] / 1e9
    return {"decode_read": {"GB/s": round(rate, 2), "share": round(rate / bandwidth, 3)}}
