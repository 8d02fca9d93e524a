"""All checks, by name: what ``kvasir doctor`` looks at."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvasir.doctor import cache, install, machine, model, network, server
from kvasir.doctor.finding import Checking, Finding, Scene

CHECKS: dict[str, Checking] = {
    "cpu": machine.cpu_level,
    "isa": machine.asked_level,
    "cpu-quota": machine.cpu_quota,
    "memory-limit": machine.memory_limit,
    "memory": machine.free_memory,
    "swap": machine.swap,
    "stolen": machine.stolen,
    "load": machine.busy,
    "governor": machine.governor,
    "huge-pages": machine.huge_pages,
    "shared-memory": machine.shared_memory,
    "threads": machine.threads,
    "files": machine.open_files,
    "clock": machine.clock,
    "core": install.core,
    "installations": install.others,
    "bytecode": install.python_flags,
    "cache-owner": cache.owner,
    "cache-space": cache.space,
    "partial-models": cache.partials,
    "orphans": cache.orphans,
    "packed": cache.packed,
    "options": server.options,
    "port": server.port,
    "open-address": server.open_address,
    "model-missing": model.missing,
    "model-pointer": model.pointers,
    "model-shards": model.shards,
    "model-file": model.readable,
    "model-hash": model.hashes,
    "model-tokenizer": model.tokenizer,
    "model-fit": model.fit,
    "hub-offline": network.offline,
    "hub": network.hub,
    "hub-token": network.token,
    "hub-gate": network.gate,
}


class Diagnosis(msgspec.Struct, frozen=True):
    check: str
    finding: Finding


def examine(scene: Scene) -> Iterator[Diagnosis]:
    """What every check finds. One that fails itself is told, and hides no other."""
    for name, check in CHECKS.items():
        try:
            yield from (Diagnosis(name, finding) for finding in check(scene))
        except Exception as error:
            yield Diagnosis(
                name,
                Finding(
                    "costs",
                    f"the check {name} failed",
                    f"{type(error).__name__}: {error}",
                    "what it looks for is not known",
                    "kvasir doctor --report writes what belongs into a bug report",
                ),
            )
