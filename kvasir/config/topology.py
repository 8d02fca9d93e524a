"""Where the CPUs lie that this process may use: cores and memory nodes, as /sys tells."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

DEVICES = Path("/sys/devices/system")
MAX_CPUS = 1 << 16


class Cpu(msgspec.Struct, frozen=True):
    number: int
    core: tuple[int, ...]
    """All CPUs of its core, itself included: equal for hardware threads of one core."""
    node: int = 0
    """The memory that is near."""


class Topology(msgspec.Struct, frozen=True):
    cpus: tuple[Cpu, ...] = ()
    """By number; only those that this process may use."""

    @property
    def n_cores(self) -> int:
        return len({cpu.core for cpu in self.cpus})

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({cpu.node for cpu in self.cpus}))


UNKNOWN = Topology()


def read_topology(allowed: Iterable[int], devices: Path = DEVICES) -> Topology:
    """A CPU whose core or node is not told is a core of its own on node 0."""
    nodes = _nodes(devices / "node")
    cpus = (
        Cpu(number, _core(number, devices / f"cpu/cpu{number}/topology"), nodes.get(number, 0))
        for number in sorted(allowed)
    )
    return Topology(tuple(cpus))


def parse_cpus(text: str) -> tuple[int, ...]:
    """Numbers of a list such as "0-3,8", in the order written. Raises ValueError."""
    numbers: list[int] = []
    for item in text.strip().split(","):
        first, dash, last = item.partition("-")
        start = _number(first)
        stop = _number(last) if dash else start
        if stop < start:
            raise ValueError(f"{item!r} ends before it begins")
        numbers.extend(range(start, stop + 1))
    return tuple(numbers)


def _number(word: str) -> int:
    if not word.isascii() or not word.isdigit() or int(word) >= MAX_CPUS:
        raise ValueError(f"{word!r} is not the number of a CPU")
    return int(word)


def _core(number: int, folder: Path) -> tuple[int, ...]:
    found = _list(folder / "core_cpus_list") or _list(folder / "thread_siblings_list")
    return found or (number,)


def _nodes(folder: Path) -> dict[int, int]:
    """Node of each CPU."""
    return {
        cpu: int(path.name[4:])
        for path in folder.glob("node*")
        if path.name[4:].isdigit()
        for cpu in _list(path / "cpulist")
    }


def _list(path: Path) -> tuple[int, ...]:
    """Empty for a file that is absent, empty or something else."""
    try:
        return parse_cpus(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return ()
