"""A real Prometheus watches a real server: every panel has data, and a death rings."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from scripts.observability import ROOT
from scripts.panels import PANELS
from tests.e2e.harness import PATIENCE, Server, reserved_port, running_server, wait_until

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus (Debian: prometheus)"
)
WINDOW = "20s"
CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: kvasir
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@contextmanager
def watched(server: Server, folder: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes ``server`` every second."""
    with reserved_port() as port:
        yield from _watched(server, folder, f"127.0.0.1:{port}")


def _watched(server: Server, folder: Path, address: str) -> Iterator[str]:
    rules = ROOT / "deploy" / "alerts.yml"
    (folder / "prometheus.yml").write_text(CONFIG.format(rules=rules, port=server.port))
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_until(lambda: query(address, "up") and query(address, "up")[0] == 1)
            yield address
        finally:
            process.terminate()
            process.wait(PATIENCE)


def query(address: str, expression: str) -> list[float]:
    """The values of an expression now."""
    try:
        url = f"http://{address}/api/v1/query"
        reply = httpx.get(url, params={"query": expression}, timeout=PATIENCE, trust_env=False)
    except httpx.TransportError:
        return []
    if reply.status_code == 503:  # it starts
        return []
    answer = reply.json()
    assert answer["status"] == "success", (expression, answer)
    return [float(row["value"][1]) for row in answer["data"]["result"]]


def asked() -> dict[str, str]:
    """Expressions by panel and legend, as Grafana would ask them."""
    return {
        f"{panel.title}: {legend}": expr.replace("$model", ".*").replace("$__rate_interval", WINDOW)
        for panel in PANELS
        for legend, expr in panel.lines
    }


def load(server: Server, number: int) -> None:
    body: dict[str, Any] = {"prompt": "the same beginning of all", "max_tokens": 20}
    server.post("/v1/completions", {**body, "user": f"user {number % 3}", "seed": number})
    server.post("/v1/completions", {**body, "temperature": -1})


def test_every_panel_has_data_and_a_death_rings(toy_folder: Path, tmp_path: Path) -> None:
    with (
        running_server(toy_folder, metrics_prefix="kvasir") as server,
        watched(server, tmp_path) as address,
    ):
        load(server, 0)
        alert = 'ALERTS{alertname="KvasirEngineDied", alertstate="firing"}'
        wait_until(lambda: query(address, "kvasir_engine_deaths_total") == [0])
        assert query(address, alert) == []
        os.kill(server.engine_pid(), signal.SIGKILL)
        missing = asked()
        deadline = time.monotonic() + PATIENCE
        number = 0
        while missing:
            load(server, number := number + 1)
            missing = {
                name: expression
                for name, expression in missing.items()
                if not (found := query(address, expression)) or all(map(math.isnan, found))
            }
            assert time.monotonic() < deadline, f"no data: {list(missing)}"
        wait_until(lambda: query(address, alert) == [1])


def test_a_scrape_each_second_costs_half_a_percent_of_a_core(
    toy_folder: Path, tmp_path: Path
) -> None:
    with running_server(toy_folder) as server:
        for number in range(5):
            load(server, number)
        server.wait_idle()
        process = psutil.Process(server.process.pid)
        n = 100
        before = process.cpu_times()
        for _ in range(n):
            assert server.get("/metrics").status_code == 200
        after = process.cpu_times()
        each = (after.user + after.system - before.user - before.system) / n
        assert each <= 0.005, f"{each * 1e3:.2f} ms a scrape"
