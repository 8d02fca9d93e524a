"""Runs fuzz cases in child processes, so that a crash, a hang or a flood of memory is one finding.

python -m tests.fuzz_run models 100000 [first seed [NAME.json]]

A file that is there gets the cases behind its own, of the same commit.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Case = Callable[[int, Path], str]
MEMORY = 4 << 30
"""Bytes of address space of a child."""
HANG_SECONDS = 60
"""Of one case, each waited for alone: what stands still together with its watcher does not hang."""


@dataclass
class Report:
    """Outcomes by name, and findings: seed and what was wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str]] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, -1)
    """Seconds and seed."""


def run(kind: str, n: int, first: int = 0) -> Report:
    """Cases ``first`` to ``first`` + ``n`` - 1 of a kind."""
    report, at = Report(), first
    with tempfile.TemporaryDirectory(prefix="kvasir-fuzz-", dir=_ram()) as folder:
        while at < first + n:
            at = _child(kind, at, first + n, Path(folder), report)
    return report


def _ram() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _child(kind: str, begin: int, end: int, folder: Path, report: Report) -> int:
    """Runs cases until the end or a crash; the seed to go on with."""
    command = [sys.executable, "-W", "error", "-m", "tests.fuzz_run", "child", kind]
    command += [str(begin), str(end), str(folder)]
    env = {**os.environ, "KVASIR_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    at = begin
    with (
        (folder / "stderr").open("wb") as errors,
        subprocess.Popen(command, 0, stdout=subprocess.PIPE, stderr=errors, env=env) as process,
    ):
        while line := _line(process):
            seed, outcome, text, seconds = json.loads(line)
            at = seed + 1
            report.outcomes[outcome] += 1
            report.slowest = max(report.slowest, (seconds, seed))
            if text:
                report.findings.append((seed, text))
        is_hung = line is None
        if is_hung:
            process.kill()
    if at < end:
        last = (folder / "stderr").read_text(errors="replace")[-2000:]
        what = "hangs" if is_hung else f"exit status {process.returncode}"
        report.findings.append((at, f"{what}\n{last}"))
        report.outcomes["crashed"] += 1
        at += 1
    return at


def _line(process: subprocess.Popen[bytes]) -> bytes | None:
    """Of a child that writes one for each case; empty at its end, None when it hangs."""
    stdout = process.stdout
    assert stdout is not None
    is_ready = any(select.select([stdout], [], [], 1.0)[0] for _ in range(HANG_SECONDS))
    return stdout.readline() if is_ready else None


def _faults(seed: int, folder: Path) -> str:
    """Cases that show whether faults are found."""
    if seed == 1:
        return str(1 // 0)
    if seed == 2:
        return str(len(bytes(MEMORY)))
    if seed == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == 5:
        time.sleep(10 * HANG_SECONDS)
    return "answered"


def _cases(kind: str) -> Case:
    """Imported now: a child needs one kind."""
    if kind == "models":
        from tests.fuzz_models import run_case
    elif kind == "requests":
        from tests.fuzz_requests import run_case
    elif kind == "calls":
        from tests.fuzz_calls import run_case
    elif kind == "images":
        from tests.fuzz_images import run_case
    else:
        return _faults
    return run_case


def child(kind: str, begin: int, end: int, folder: Path) -> None:
    """One line of JSON for each case: seed, outcome, what was wrong, seconds."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    case, own = _cases(kind), folder / "case"
    own.mkdir(exist_ok=True)
    for seed in range(begin, end):
        began, text = time.perf_counter(), ""
        try:
            outcome = case(seed, own)
        except BaseException:  # panics of the tokenizers library are no Exception
            outcome, text = "found", traceback.format_exc()
        print(json.dumps((seed, outcome, text, time.perf_counter() - began)), flush=True)


def keep(kind: str, first: int, report: Report, seconds: float, path: Path) -> None:
    """As a result with machine and commit."""
    from kvasir.bench import report as bench  # no child needs it

    results = {
        "cases": sum(report.outcomes.values()),
        "first_seed": first,
        "outcomes": dict(report.outcomes),
        "findings": len(report.findings),
        "seconds": round(seconds),
    }
    command = bench.command_line("python -m tests.fuzz_run")
    made = bench.report(f"fuzz-{kind}", {}, results, command=command)
    bench.write(joined(json.loads(path.read_text()), made) if path.exists() else made, path)


def joined(kept: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """One result of two whose seeds follow one another. Raises ValueError for any others."""
    old, new = kept["results"], made["results"]
    end, commits = old["first_seed"] + old["cases"], [x["machine"]["commit"] for x in (kept, made)]
    if kept["kind"] != made["kind"] or new["first_seed"] != end or len(set(commits)) > 1:
        raise ValueError(
            f"the file has {kept['kind']} up to seed {end} at {commits[0]}; it cannot have "
            f"{made['kind']} from {new['first_seed']} on at {commits[1]}: name another file"
        )
    outcomes = Counter(old["outcomes"]) + Counter(new["outcomes"])
    sums = {name: old[name] + new[name] for name in ("cases", "findings", "seconds")}
    commands = f"{kept['command']}; {made['command']}"
    return {**made, "command": commands, "results": {**old, **sums, "outcomes": dict(outcomes)}}


def main(arguments: list[str]) -> int:
    if arguments[0] == "child":
        child(arguments[1], int(arguments[2]), int(arguments[3]), Path(arguments[4]))
        return 0
    first = int(arguments[2]) if len(arguments) > 2 else 0
    began = time.perf_counter()
    report = run(arguments[0], int(arguments[1]), first)
    for seed, text in report.findings[:2000]:
        print(f"--- seed {seed}\n{text}")
    seconds = time.perf_counter() - began
    print(f"{dict(report.outcomes)}, {len(report.findings)} findings, {seconds:.0f} s;", end=" ")
    print(f"slowest {report.slowest[0]:.1f} s (seed {report.slowest[1]})")
    if len(arguments) > 3:
        keep(arguments[0], first, report, seconds, Path(arguments[3]))
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
