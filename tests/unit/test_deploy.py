"""What deploy/ holds is fresh, says nothing that does not exist, and fires."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from kvasir.config.serving import ServeOptions
from kvasir.core.messages import DiskStats, EngineStats
from kvasir.core.request import Standing
from kvasir.serve.app import ROUTES
from kvasir.serve.metrics import Finished, Metrics
from scripts.alerts import ALERTS
from scripts.observability import ROOT, files
from scripts.panels import PANELS

EXPRESSIONS = [alert.expr for alert in ALERTS] + [
    expr for panel in PANELS for _, expr in panel.lines
]
MODEL = 'model_name="m"'
TTFT, LAG = "kvasir_time_to_first_token_seconds_bucket", "kvasir_event_loop_lag_seconds_bucket"
ITL = "kvasir_inter_token_latency_seconds_bucket"
FIRES: dict[str, dict[str, str]] = {
    "KvasirAbsent": {},
    "KvasirEngineDied": {f"kvasir_engine_deaths_total{{{MODEL}}}": "0x10 1x40"},
    "KvasirEngineKeepsDying": {f"kvasir_engine_deaths_total{{{MODEL}}}": "0x10 0+1x40"},
    "KvasirEngineHung": {f"kvasir_engine_hang_kills_total{{{MODEL}}}": "0x10 1x40"},
    "KvasirFailsRequests": {'kvasir_request_errors_total{code="engine_fault"}': "0+1x50"},
    "KvasirRefusesRequests": {'kvasir_request_errors_total{code="queue_full"}': "0+1x50"},
    "KvasirQueueLong": {f"kvasir_expected_queue_seconds{{{MODEL}}}": "31x50"},
    "KvasirFirstTokenLate": {
        f'{TTFT}{{{MODEL},le="60.0"}}': "0+9x50",
        f'{TTFT}{{{MODEL},le="+Inf"}}': "0+9x50",
    },
    "KvasirTokensLate": {
        f'{ITL}{{{MODEL},le="1.0"}}': "0+9x50",
        f'{ITL}{{{MODEL},le="+Inf"}}': "0+9x50",
    },
    "KvasirPreempts": {f"kvasir_num_preemptions_total{{{MODEL}}}": "0+120x50"},
    "KvasirEventLoopLate": {f'{LAG}{{le="0.5"}}': "0+9x50", f'{LAG}{{le="+Inf"}}': "0+9x50"},
    "KvasirMemoryShort": {"kvasir_memory_used_ratio": "0.96x50"},
    "KvasirDiskDamaged": {f"kvasir_kv_disk_blocks_damaged_total{{{MODEL}}}": "0x10 1x40"},
}
"""What makes each alert fire: series, and their values a minute apart."""
WELL = {"kvasir_build_info": "1x50"}
PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)"
)


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_they_are_fresh(path: Path) -> None:
    assert path.read_text("utf-8") == files()[path], "run python -m scripts.observability"


def test_every_expression_has_data() -> None:
    """From a server that has answered and refused something, and has seen grammars and calls."""
    metrics = Metrics("kvasir")
    stats = EngineStats(disk=DiskStats())
    measured = metrics.of("m", lambda: stats)
    measured.finished(Standing(), Finished("stop", 1, 2, 0.1, 0.1, 0.1))
    measured.judged(0.1)
    measured.judged(None)
    measured.refused("not")
    measured.calls_made("hermes", 1, is_cut=False)
    metrics.count_error("x")
    shown = set(re.findall(r"^(kvasir_\w+)", metrics.text().decode(), re.MULTILINE))
    for expr in EXPRESSIONS:
        named = re.findall(r"kvasir_\w+", expr)
        assert named and set(named) <= shown, expr


def test_the_dashboard_has_a_place_for_each_panel() -> None:
    panels = json.loads((ROOT / "deploy" / "grafana.json").read_text("utf-8"))["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) == len(PANELS)


@PROMTOOL
def test_promtool_takes_the_rules() -> None:
    checked = subprocess.run(
        ["promtool", "check", "rules", str(ROOT / "deploy" / "alerts.yml")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout


@PROMTOOL
@pytest.mark.parametrize("alert", [alert.name for alert in ALERTS])
@pytest.mark.parametrize("is_well", [True, False])
def test_an_alert_fires_and_rests(alert: str, is_well: bool, tmp_path: Path) -> None:
    """It rests while its series stay at zero."""
    told = {**WELL, **dict.fromkeys(FIRES[alert], "0x50")} if is_well else FIRES[alert]
    firing = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    test = {
        "rule_files": [str(ROOT / "deploy" / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": x, "values": told[x]} for x in told],
                "promql_expr_test": [
                    {
                        "expr": f"count({firing}) or vector(0)",
                        "eval_time": "16m",
                        "exp_samples": [{"labels": "{}", "value": 0 if is_well else 1}],
                    }
                ],
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(test))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    text = (ROOT / "deploy" / "kubernetes.yaml").read_text("utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def test_the_manifests_agree_with_the_server(manifests: dict[str, Any]) -> None:
    pod = manifests["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    model, *args = container["args"]
    options = dict(arg.removeprefix("--").replace("-", "_").split("=") for arg in args)
    assert (
        model.startswith("/models/") and options.keys() <= ServeOptions.__dataclass_fields__.keys()
    )
    public = {route.path for route in ROUTES if route.access == "public"}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in public
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
    assert container["ports"][0]["containerPort"] == int(options["port"])
    ends = int(options["drain_delay"]) + int(options["shutdown_timeout"])
    assert pod["spec"]["terminationGracePeriodSeconds"] > ends
    service = manifests["Service"]["spec"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert (service["type"], service["ports"][0]["port"]) == ("ClusterIP", 80)
    assert service["ports"][0]["targetPort"] == container["ports"][0]["name"]
