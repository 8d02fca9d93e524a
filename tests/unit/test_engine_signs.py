"""What is said of an engine process that does not go on, or has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kvasir.serve.death import N_CALLS, threads_in
from kvasir.serve.procfs import ProcessSigns, stolen_ticks


def test_signs_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.serve.procfs.stolen_ticks", list)
    with subprocess.Popen(["sleep", "60"]) as process:
        signs = ProcessSigns(process.pid)
        assert not signs.is_stopped
        assert signs.waited() == 0
        assert 0 <= signs.waited() < 1 and signs.n_faults >= 0
        process.send_signal(signal.SIGSTOP)
        while not signs.is_stopped:
            time.sleep(0.001)
        process.kill()
    assert (signs.is_stopped, signs.n_faults, signs.waited()) == (False, 0, 0)


def test_time_that_the_host_took_from_a_cpu_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers as proc(5) has them: ticks, of which ``sysconf`` says how many make a second."""
    line = "{} 9 9 9 9 9 9 9 {} 9 9\n"
    path = tmp_path / "stat"
    ticks = [[0, 0]]
    monkeypatch.setattr("kvasir.serve.procfs.stolen_ticks", lambda: ticks[-1])
    signs = ProcessSigns(os.getpid())
    signs.waited()
    for stolen in ([0, 300], [100, 350]):
        path.write_text(
            line.format("cpu", sum(stolen))
            + "".join(line.format(f"cpu{i}", n) for i, n in enumerate(stolen))
            + "intr 1 2 3\n"
        )
        assert stolen_ticks(path) == stolen
        ticks.append(stolen)
        most = max(now - then for now, then in zip(ticks[-1], ticks[-2], strict=True))
        assert signs.waited() == pytest.approx(most / os.sysconf("SC_CLK_TCK"), abs=0.5)
    assert stolen_ticks(tmp_path / "none") == []


def test_where_threads_were_when_a_process_ended() -> None:
    calls = "".join(f'  File "/of/{i}.py", line {i} in f{i}\n' for i in range(N_CALLS + 3))
    dump = (
        "Fatal Python error: Segmentation fault\n\n"
        'Thread 0x7f11 (most recent call first):\n  File "/of/q.py", line 7 in get\n\n'
        f"Current thread 0x7f12 (most recent call first):\n{calls}  ...\n\n"
        "Extension modules: numpy.linalg._umath_linalg (total: 1)\n"
    )
    shown = ", ".join(f"f{i} (of/{i}.py:{i})" for i in range(N_CALLS))
    assert threads_in(dump) == ("get (of/q.py:7)", shown)
    assert threads_in("") == threads_in("Fatal Python error: Aborted\n") == ()
