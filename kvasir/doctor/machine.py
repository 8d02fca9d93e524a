"""CPU, memory and system."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvasir.config.hardware import probe
from kvasir.config.sizes import format_size
from kvasir.config.topology import read_topology
from kvasir.doctor.finding import Finding, Scene

SAMPLE_SECONDS = 0.25
STOLEN = 0.05
"""Share of the CPUs' time that is told."""
LITTLE_MEMORY = 512 << 20
SHM = "dev/shm"
SHM_BYTES = 64 << 20
SWAPPED = 0.1
"""Of the memory, in swap, that is told."""
FILES = 1024
BUILT = 1_790_000_000
"""Unix time before which no clock can be right: this was not written yet."""


def cpu_level(scene: Scene) -> Iterator[Finding]:
    flags = cpu_flags(scene)
    if flags and not {"sse4_2", "popcnt", "ssse3"} <= flags:
        yield Finding(
            "blocks",
            "the CPU is older than x86-64-v2",
            "/proc/cpuinfo has no sse4_2",
            "no kernel runs: illegal instruction",
            "use a CPU made after 2009, or let the virtual machine show its host's (-cpu host)",
        )
    elif flags and "avx2" not in flags:
        yield Finding(
            "costs",
            "the CPU has no AVX2",
            "/proc/cpuinfo has no avx2",
            "answers take 3 to 8 times as long",
            "where the machine is virtual, let it show its host's CPU (-cpu host)",
        )


def asked_level(scene: Scene) -> Iterator[Finding]:
    asked = scene.variables.get("KVASIR_ISA")
    if asked:
        yield Finding(
            "costs",
            f"KVASIR_ISA asks for {asked}",
            "the variable is set",
            "kernels of better levels are left unused",
            "unset KVASIR_ISA",
        )


def cpu_quota(scene: Scene) -> Iterator[Finding]:
    words = scene.text("sys/fs/cgroup/cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
        cpus, n_cpus = int(words[0]) / int(words[1]), n_online(scene)
        if cpus < n_cpus and not math.isclose(cpus, round(cpus)):
            yield Finding(
                "costs",
                f"a control group allows {cpus:g} of {n_cpus} CPUs",
                "cpu.max",
                "threads are stopped for the rest of each period: steps come in bursts",
                f"give it a whole number of CPUs, or serve with --threads {max(1, int(cpus))}",
            )


def memory_limit(scene: Scene) -> Iterator[Finding]:
    limit = scene.text("sys/fs/cgroup/memory.max").strip()
    if limit.isdigit() and int(limit) < 2 * LITTLE_MEMORY:
        yield Finding(
            "costs",
            f"a control group allows {format_size(int(limit))} of memory",
            "memory.max",
            "few models have room, with few tokens",
            "raise the limit of the container or the service (MemoryMax=)",
        )


def free_memory(scene: Scene) -> Iterator[Finding]:
    free = meminfo(scene, "MemAvailable")
    if free is not None and free < LITTLE_MEMORY:
        yield Finding(
            "blocks",
            f"{format_size(free)} of memory are free",
            "MemAvailable in /proc/meminfo",
            "no model starts: the smallest need half a gigabyte",
            "end what takes it (ps aux --sort -rss), or add memory",
        )


def swap(scene: Scene) -> Iterator[Finding]:
    total, free, memory = (meminfo(scene, x) for x in ("SwapTotal", "SwapFree", "MemTotal"))
    if total and free is not None and memory and total - free > SWAPPED * memory:
        yield Finding(
            "costs",
            f"{format_size(total - free)} are swapped out",
            "SwapTotal and SwapFree in /proc/meminfo",
            "weights and KV blocks may be next: steps then take seconds",
            "end what takes the memory, then swapoff -a && swapon -a",
        )


def stolen(scene: Scene) -> Iterator[Finding]:
    before = _cpu_times(scene)
    scene.pause(SAMPLE_SECONDS)
    after = _cpu_times(scene)
    spent = [b - a for a, b in zip(before, after, strict=False)]
    total = sum(spent[:8])
    if len(spent) > 7 and total > 0 and spent[7] / total > STOLEN:
        yield Finding(
            "costs",
            f"the host takes {spent[7] / total:.0%} of the CPUs away",
            f"steal in /proc/stat, over {SAMPLE_SECONDS} s",
            "steps wait for the thread whose CPU is gone: up to twice as long",
            "use a machine whose CPUs are not shared, or serve with fewer --threads",
        )


def busy(scene: Scene) -> Iterator[Finding]:
    words, n_cpus = scene.text("proc/loadavg").split(), n_online(scene)
    if words and float(words[0]) > 1.5 * n_cpus:
        yield Finding(
            "costs",
            f"{float(words[0]):.1f} processes want {n_cpus} CPUs",
            "the load of the last minute in /proc/loadavg",
            "every step shares its CPUs with them",
            "end them, or give the server a higher priority (nice)",
        )


def governor(scene: Scene) -> Iterator[Finding]:
    said = {
        path.read_text(encoding="utf-8").strip()
        for path in (scene.root / "sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
    }
    driver = scene.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver").strip()
    if "powersave" in said and driver not in ("intel_pstate", "amd-pstate-epp"):
        yield Finding(
            "costs",
            "the CPUs keep to their lowest clock",
            "scaling_governor is powersave",
            "everything takes up to three times as long",
            "sudo cpupower frequency-set -g performance",
        )


def huge_pages(scene: Scene) -> Iterator[Finding]:
    if "[never]" in scene.text("sys/kernel/mm/transparent_hugepage/enabled"):
        yield Finding(
            "costs",
            "the system gives no huge pages",
            "transparent_hugepage/enabled is never",
            "weights and KV blocks are read through many small pages: 2 to 10 % slower",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )


def shared_memory(scene: Scene) -> Iterator[Finding]:
    path = scene.root / SHM
    if not path.is_dir():
        yield Finding(
            "blocks",
            "there is no /dev/shm",
            "it is no folder",
            "the server cannot tell which requests ran when its engine died",
            "mount it: mount -t tmpfs tmpfs /dev/shm",
        )
    elif scene.disk(path).total < SHM_BYTES:
        yield Finding(
            "costs",
            f"/dev/shm has {format_size(scene.disk(path).total)}",
            "statvfs",
            "what shares memory fails when it is full",
            "give the container more (docker run --shm-size 256m)",
        )


def threads(scene: Scene) -> Iterator[Finding]:
    asked = scene.variables.get("KVASIR_THREADS", "")
    topology = read_topology(range(n_online(scene)), scene.root / "sys/devices/system")
    if asked.isdigit() and topology.n_cores and int(asked) > topology.n_cores:
        yield Finding(
            "costs",
            f"KVASIR_THREADS is {asked}, the CPUs have {topology.n_cores} cores",
            "core_cpus_list below /sys/devices/system/cpu",
            "hardware threads of one core share what computes, and wait for each other",
            "unset KVASIR_THREADS: a thread for each core is the default",
        )


def open_files(scene: Scene) -> Iterator[Finding]:
    most = scene.n_files()
    if 0 <= most < FILES:
        yield Finding(
            "costs",
            f"a process may open {most} files",
            "RLIMIT_NOFILE",
            "as many connections at a time are refused or wait",
            "ulimit -n 65536, or LimitNOFILE= of the service",
        )


def clock(scene: Scene) -> Iterator[Finding]:
    if scene.now() < BUILT:
        yield Finding(
            "blocks",
            "the clock is wrong",
            "it shows a time before this version was made",
            "certificates are not valid yet: nothing can be fetched",
            "sudo timedatectl set-ntp true",
        )


def cpu_flags(scene: Scene) -> set[str]:
    lines = scene.text("proc/cpuinfo").splitlines()
    return next((set(x.partition(":")[2].split()) for x in lines if x.startswith("flags")), set())


def n_online(scene: Scene) -> int:
    n = sum(line.startswith("processor") for line in scene.text("proc/cpuinfo").splitlines())
    return n or probe().n_cpus


def meminfo(scene: Scene, key: str) -> int | None:
    """Bytes."""
    for line in scene.text("proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == key and value.split()[:1]:
            return 1024 * int(value.split()[0])
    return None


def _cpu_times(scene: Scene) -> list[int]:
    words = scene.text("proc/stat").split("\n", 1)[0].split()
    return [int(word) for word in words[1:] if word.isdigit()]
