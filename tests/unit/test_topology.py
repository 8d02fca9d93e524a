"""CPUs, cores and memory nodes as /sys tells them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvasir.config.hardware import free_memory
from kvasir.config.topology import Cpu, Topology, parse_cpus, read_topology


def machine(folder: Path, cores: dict[int, str], nodes: dict[int, str]) -> Path:
    """A tree like /sys/devices/system: the core of each CPU and the CPUs of each node."""
    for cpu, core in cores.items():
        topology = folder / f"cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "core_cpus_list").write_text(core + "\n")
    for node, cpus in nodes.items():
        place = folder / f"node/node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(cpus + "\n")
    return folder


def test_threads_of_a_core_and_nodes_are_told_apart(tmp_path: Path) -> None:
    cores = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    found = read_topology({3, 0, 2}, machine(tmp_path, cores, {0: "0,2", 1: "1,3"}))
    assert found.cpus == (Cpu(0, (0, 2), 0), Cpu(2, (0, 2), 0), Cpu(3, (1, 3), 1))
    assert (found.n_cores, found.nodes) == (2, (0, 1))


def test_a_system_that_tells_nothing_has_cores_on_one_node(tmp_path: Path) -> None:
    found = read_topology({1, 4}, tmp_path)
    assert found == Topology((Cpu(1, (1,), 0), Cpu(4, (4,), 0)))
    assert (found.n_cores, found.nodes) == (2, (0,))


def test_this_machine_has_cores() -> None:
    found = read_topology({0})
    assert found.n_cores == 1


def test_lists_of_cpus_keep_their_order() -> None:
    assert parse_cpus("0-3,8\n") == (0, 1, 2, 3, 8)
    assert parse_cpus("5,1-2") == (5, 1, 2)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-", "99999999", "²"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"CPU|ends before"):
        parse_cpus(text)


def test_free_memory_is_what_the_system_calls_available(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 10 kB\nMemAvailable:       7 kB\n")
    assert free_memory(tmp_path / "meminfo") == 7168
    assert free_memory(tmp_path / "none") == 0
    assert free_memory() > 1 << 20
