"""Where threads and memory go, decided on made-up machines: none with several nodes is at hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvasir.config.affinity import by_core, decide, parse_affinity
from kvasir.config.hardware import Hardware
from kvasir.config.options import EngineOptions
from kvasir.config.resolve import resolve
from kvasir.config.resolved import EngineConfig, ModelFacts
from kvasir.config.topology import Cpu, Topology
from kvasir.core.errors import ConfigError
from tests.settings import cpu_settings

# Two cores of two threads on one node.
SMALL = Topology(tuple(Cpu(i, (i % 2, i % 2 + 2)) for i in range(4)))
# Two nodes of four cores.
LARGE = Topology(tuple(Cpu(i, (i,), i // 4) for i in range(8)))
# A process that may use one CPU of node 0 and three of node 1.
UNEVEN = Topology((Cpu(0, (0,), 0), Cpu(4, (4,), 1), Cpu(5, (5,), 1), Cpu(6, (6,), 1)))


def test_one_node_binds_nothing_by_itself() -> None:
    found = decide("auto", "auto", SMALL, 2)
    assert (found.threads, found.nodes) == ((), ())
    assert "another process takes" in found.why
    assert found.memory == "the kernel decides: one memory node"


def test_cores_come_before_their_second_threads() -> None:
    assert [cpu.number for cpu in by_core(SMALL.cpus)] == [0, 1, 2, 3]
    mixed = Topology((Cpu(0, (0, 1)), Cpu(1, (0, 1)), Cpu(2, (2, 3)), Cpu(3, (2, 3))))
    found = decide("cores", "auto", mixed, 3)
    assert found.threads == ((0,), (2,), (1,))
    assert found.why.startswith("0, 2, 1: as asked")


def test_more_threads_than_cpus_are_not_bound() -> None:
    found = decide("cores", "auto", SMALL, 5)
    assert found.threads == ()
    assert "5 threads for 4 CPUs" in found.why


def test_few_threads_stay_on_one_node() -> None:
    found = decide("auto", "auto", LARGE, 4)
    assert found.threads == ((0, 1, 2, 3),) * 4
    assert found.nodes == (0,)
    assert found.why.startswith("4 x 0+1+2+3: each thread stays near one of 2")


def test_many_threads_use_all_nodes_evenly() -> None:
    found = decide("auto", "auto", LARGE, 6)
    assert found.threads == ((0, 1, 2, 3),) * 3 + ((4, 5, 6, 7),) * 3
    assert found.nodes == (0, 1)
    assert found.memory == "in turns on nodes 0,1: any thread reads any weight"


def test_the_node_with_more_cpus_goes_first() -> None:
    assert decide("auto", "auto", UNEVEN, 3).threads == ((4, 5, 6),) * 3
    spread = decide("auto", "auto", UNEVEN, 4)
    assert spread.threads == ((4, 5, 6),) * 3 + ((0,),)
    assert spread.nodes == (0, 1)


def test_what_is_asked_is_done() -> None:
    found = decide("5,0", "auto", UNEVEN, 2)
    assert (found.threads, found.nodes) == (((5,), (0,)), (0, 1))
    assert decide("4-6", "auto", UNEVEN, 2).nodes == (1,)
    free = decide("none", "none", LARGE, 8)
    assert (free.threads, free.nodes) == ((), ())
    assert (free.why, free.memory) == ("none: as asked", "the kernel decides: as asked")
    assert decide("none", "auto", LARGE, 8).nodes == (0, 1)


@pytest.mark.parametrize(
    ("text", "n_threads", "message"),
    [
        ("0-3", 2, "names CPU 1, this process may use 0,4,5,6"),
        ("4,5", 3, "names 2 CPUs for 3 threads"),
        ("4,4", 2, "names a CPU twice"),
        ("all", 2, "use auto, none, cores or a list as in 0-3,8"),
    ],
)
def test_a_wrong_list_names_the_remedy(text: str, n_threads: int, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        decide(text, "auto", UNEVEN, n_threads)


def test_words_are_no_lists() -> None:
    assert [parse_affinity(word) for word in ("auto", "none", "cores")] == [None, None, None]
    assert parse_affinity("2,0-1") == (2, 0, 1)


def resolved(hardware: Hardware, **options: Any) -> EngineConfig:
    facts = ModelFacts("m", 100, 512, 64, 1000, "float32", 2)
    return resolve(EngineOptions(max_model_len=64, **options), facts, hardware, cpu_settings)


def test_the_report_says_what_was_decided() -> None:
    machine = Hardware(8, 8, 1 << 30, ("scalar",), LARGE, "madvise")
    config = resolved(machine, threads=4)
    assert config.executor.affinity.nodes == (0,)
    assert config.reasons["cpu_affinity"].startswith("4 x 0+1+2+3")
    assert config.reasons["huge_pages"] == "asked for: the system gives them (madvise)"
    assert config.reasons["numa"] == "in turns on nodes 0: any thread reads any weight"


def test_a_list_of_cpus_says_how_many_threads() -> None:
    config = resolved(Hardware(8, 8, 1 << 30, ("scalar",), LARGE), cpu_affinity="1,5-6")
    assert config.executor.threads == 3
    assert config.executor.affinity.threads == ((1,), (5,), (6,))
    assert config.reasons["threads"] == "3: CPUs of cpu_affinity"


@pytest.mark.parametrize(
    ("mode", "asked", "wanted", "reason"),
    [
        ("never", "auto", True, "asked for: the system gives none (never)"),
        ("", "auto", True, "asked for: the system gives none (unknown)"),
        ("always", "none", False, "refused: as asked"),
    ],
)
def test_huge_pages_are_asked_for_or_refused(
    mode: str, asked: str, wanted: bool, reason: str
) -> None:
    config = resolved(Hardware(2, 2, 1 << 30, ("scalar",), SMALL, mode), huge_pages=asked)
    assert (config.executor.huge_pages, config.reasons["huge_pages"]) == (wanted, reason)
