"""Measuring beside others: CPU time by process, streaming against offline, a disturbed machine."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import psutil
import pytest

from kvasir.bench import disturbed, streaming
from kvasir.bench.burner import burn
from kvasir.bench.cputime import CpuTimes, ServerProcesses, cpu_seconds, processes_of, server_at
from kvasir.bench.disturbed import DisturbedSettings, measure_disturbed
from kvasir.bench.streaming import StreamingRun, StreamingSettings, measure_streaming
from kvasir.bench.workload import Workload
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.engine.build import build_engine


def test_cpu_time_is_told_by_process_and_token() -> None:
    spent = CpuTimes(3.0, 2.5, 9.0).since(CpuTimes(1.0, 2.0, 5.0))
    assert spent.report(1000) == {
        "seconds": {"client": 2.0, "api": 0.5, "engine": 4.0},
        "microseconds_per_token": {"client": 2000.0, "api": 500.0, "engine": 4000.0},
    }


def test_cpu_time_of_this_process_grows_with_its_work() -> None:
    own = psutil.Process()
    before, both = cpu_seconds(own), ServerProcesses(own, own)
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert cpu_seconds(own) - before >= 0.03
    assert both.times().since(CpuTimes(0, 0, 0)).client == pytest.approx(cpu_seconds(own), abs=0.1)


LISTENER = """
import socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.readline()
with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
    print(child.pid, flush=True)
    sys.stdin.readline()
"""


def test_only_a_process_with_one_child_is_a_server() -> None:
    command = [sys.executable, "-c", LISTENER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert server_at("127.0.0.1", port) is None
        process.stdin.write(b"\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        found = server_at("127.0.0.1", port)
        assert found is not None
        assert (found.api.pid, found.engine.pid) == (process.pid, child)
        assert server_at("192.0.2.1", port) is None
    assert processes_of(2**22 + 1) is None


def test_the_burner_takes_its_share() -> None:
    ended = threading.Event()
    threading.Timer(1, ended.set).start()
    used = burn(0.3, ended)
    assert 0.03 < used < 0.6


def test_losses_are_told_with_the_client_and_beside_it() -> None:
    offline = [StreamingRun(8.0, CpuTimes(0, 0, 15.0), 0.02)]
    served = [StreamingRun(10.0, CpuTimes(2.0, 1.0, 16.0), 0.3)]
    found = streaming.compare(offline, served, 1000, n_cpus=2)
    assert found["lost"] == 0.2
    assert found["lost_beside_client"] == round(1 - 8 / 9, 4)
    assert found["lost_by_engine"] == 0.0625
    assert found["offline_tokens_per_second"]["median"] == 125.0
    assert found["foreign"] == [0.02, 0.3]


def test_a_lost_share_is_compared_with_the_stolen_one() -> None:
    settings = DisturbedSettings(num_prompts=2, output_len=10)
    found = disturbed.compare([3.0, 3.0], [4.0, 4.0], [0.25, 0.25], settings)
    assert (found["lost"]["median"], found["factor"]) == (0.25, 1.0)
    assert found["disturbed_tokens_per_second"]["median"] == 5.0
    assert disturbed.compare([1.0], [1.0], [0.0], settings)["factor"] is None


def test_a_disturbed_run_has_its_shares() -> None:
    workload = Workload(build_engine(EngineOptions(executor="fake", kv_memory="1MiB")))
    found = measure_disturbed(workload, DisturbedSettings(2, 8, 20, 0.5, repeat=1))
    assert 0 < found["stolen"]["median"] <= 1
    assert len(found["foreign"]) == 1
    assert found["num_prompts"] == 2


def test_streaming_needs_an_engine_that_computes() -> None:
    options = EngineOptions(executor="fake", kv_memory="1MiB")
    with pytest.raises(ConfigError, match="computes nothing"):
        measure_streaming(options, StreamingSettings(2, 4, 4, 1))
