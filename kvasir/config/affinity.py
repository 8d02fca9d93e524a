"""Which CPUs threads may use, and which memory nodes what they read is spread over."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from kvasir.config.topology import Cpu, Topology, parse_cpus
from kvasir.core.errors import ConfigError

AUTO, NONE, CORES = "auto", "none", "cores"


class Affinity(msgspec.Struct, frozen=True):
    threads: tuple[tuple[int, ...], ...] = ()
    """CPUs that each thread may use; empty: every thread uses all that the process may."""
    nodes: tuple[int, ...] = ()
    """Memory nodes that weights, KV blocks and arena take turns on; empty: the kernel decides."""
    why: str = "none: as asked"
    """The decision on CPUs, for the start-up report."""
    memory: str = "the kernel decides: one memory node"


FREE = Affinity()


def parse_affinity(text: str) -> tuple[int, ...] | None:
    """CPUs of a list; None for a word. Raises ConfigError for what is neither."""
    if text in (AUTO, NONE, CORES):
        return None
    try:
        cpus = parse_cpus(text)
    except ValueError as error:
        raise ConfigError(
            f"cpu_affinity {text!r}: {error}: use auto, none, cores or a list as in 0-3,8"
        ) from None
    if len(set(cpus)) < len(cpus):
        raise ConfigError(f"cpu_affinity {text!r} names a CPU twice")
    return cpus


def decide(asked: str, numa: str, topology: Topology, n_threads: int) -> Affinity:
    """Raises ConfigError when a list names CPUs that the process may not use, or too few."""
    threads, why = _threads(asked, topology, n_threads)
    nodes, memory = _nodes(numa, topology, threads)
    return Affinity(threads, nodes, why, memory)


def _threads(
    asked: str, topology: Topology, n_threads: int
) -> tuple[tuple[tuple[int, ...], ...], str]:
    listed = parse_affinity(asked)
    if listed is not None:
        return _listed(listed, topology, n_threads), f"{asked}: as asked, a CPU for each thread"
    if asked == NONE:
        return (), "none: as asked"
    if asked == CORES:
        order = by_core(topology.cpus)
        if n_threads > len(order):
            return (), f"none: {n_threads} threads for {len(order)} CPUs take turns"
        alone = tuple((cpu.number,) for cpu in order[:n_threads])
        return alone, f"{_text(alone)}: as asked, a CPU for each thread, other cores first"
    if len(topology.nodes) < 2:
        return (), "none: on one memory node a thread leaves a CPU that another process takes"
    chosen = _by_node(topology, n_threads)
    return chosen, f"{_text(chosen)}: each thread stays near one of {len(topology.nodes)} memories"


def _listed(
    cpus: tuple[int, ...], topology: Topology, n_threads: int
) -> tuple[tuple[int, ...], ...]:
    usable = {cpu.number for cpu in topology.cpus}
    foreign = [cpu for cpu in cpus if cpu not in usable]
    if foreign:
        raise ConfigError(
            f"cpu_affinity names CPU {foreign[0]}, this process may use "
            f"{','.join(map(str, sorted(usable))) or 'none'}: choose among these"
        )
    if n_threads > len(cpus):
        raise ConfigError(
            f"cpu_affinity names {len(cpus)} CPUs for {n_threads} threads: name one for each, or "
            "lower --threads"
        )
    return tuple((cpu,) for cpu in cpus[:n_threads])


def by_core(cpus: Sequence[Cpu]) -> list[Cpu]:
    """One CPU of every core first, then the second ones."""
    seen: dict[tuple[int, ...], int] = {}
    ranks = {}
    for cpu in cpus:
        ranks[cpu.number] = seen.get(cpu.core, 0)
        seen[cpu.core] = ranks[cpu.number] + 1
    return sorted(cpus, key=lambda cpu: (ranks[cpu.number], cpu.number))


def _by_node(topology: Topology, n_threads: int) -> tuple[tuple[int, ...], ...]:
    """As few nodes as have a core for each thread, filled evenly; all when none suffice."""
    ordered = sorted(topology.cpus, key=lambda cpu: cpu.node)
    nodes = [list(members) for _, members in groupby(ordered, key=lambda cpu: cpu.node)]
    nodes.sort(key=lambda members: -_n_cores(members))
    n_used = next(
        (n for n in range(1, len(nodes)) if sum(map(_n_cores, nodes[:n])) >= n_threads), len(nodes)
    )
    used = nodes[:n_used]
    total = sum(map(len, used))
    ends = [sum(map(len, used[: i + 1])) * n_threads / total for i in range(n_used)]
    places = (next(i for i, end in enumerate(ends) if thread < end) for thread in range(n_threads))
    return tuple(tuple(cpu.number for cpu in used[place]) for place in places)


def _n_cores(cpus: Sequence[Cpu]) -> int:
    return len({cpu.core for cpu in cpus})


def _nodes(
    numa: str, topology: Topology, threads: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], str]:
    if numa == NONE:
        return (), "the kernel decides: as asked"
    if len(topology.nodes) < 2:
        return (), "the kernel decides: one memory node"
    used = {number for cpus in threads for number in cpus}
    nodes = {cpu.node for cpu in topology.cpus if not used or cpu.number in used}
    chosen = tuple(sorted(nodes))
    names = ",".join(map(str, chosen))
    return chosen, f"in turns on nodes {names}: any thread reads any weight"


def _text(threads: Sequence[Sequence[int]]) -> str:
    """CPUs of each thread, equal neighbours counted."""
    parts = []
    for cpus, group in groupby(threads):
        count = len(list(group))
        parts.append(f"{count} x " * (count > 1) + "+".join(map(str, cpus)))
    return ", ".join(parts)
