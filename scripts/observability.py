"""Writes what follows from the table of metrics: Grafana's dashboard, Prometheus' alerts, and the
table in docs/metrics.md. ``python -m scripts.observability``; a test holds that they are fresh."""

from __future__ import annotations

import json
from pathlib import Path

from kvasir.serve.metric_table import METRICS, MetricInfo
from scripts.alerts import ALERTS, Alert
from scripts.panels import PANELS, Panel

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "metrics.md"
BEGIN = "<!-- table: scripts/observability.py writes it -->\n"
END = "<!-- end of table -->"
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
"""Of a panel; Grafana's grid is 24 wide."""


def files() -> dict[Path, str]:
    """What each file should hold."""
    return {
        ROOT / "deploy" / "grafana.json": dashboard(PANELS),
        ROOT / "deploy" / "alerts.yml": rules(ALERTS),
        PAGE: with_table(PAGE.read_text("utf-8"), METRICS),
    }


def rules(alerts: tuple[Alert, ...]) -> str:
    """A rule file of Prometheus."""
    lines = [
        "# Written by scripts/observability.py.",
        "groups:",
        "  - name: kvasir",
        "    rules:",
    ]
    for alert in alerts:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expr)}",
            f"        for: {alert.lasts}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
        ]
    return "\n".join(lines) + "\n"


def dashboard(panels: tuple[Panel, ...]) -> str:
    """A dashboard that Grafana imports."""
    told = {
        "title": "Kvasir",
        "uid": "kvasir",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_SOURCE, _MODEL]},
        "panels": [_panel(i, panel) for i, panel in enumerate(panels)],
    }
    return json.dumps(told, indent=1) + "\n"


_DATASOURCE = {"type": "prometheus", "uid": "${source}"}
_SOURCE = {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
_MODEL = {
    "name": "model",
    "label": "Model",
    "type": "query",
    "datasource": _DATASOURCE,
    "query": "label_values(kvasir_num_requests_running, model_name)",
    "includeAll": True,
    "allValue": ".*",
    "multi": True,
    "refresh": 2,
}


def _panel(i: int, panel: Panel) -> dict[str, object]:
    row, column = divmod(i, COLUMNS)
    return {
        "id": i + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _DATASOURCE,
        "gridPos": {"x": WIDTH * column, "y": HEIGHT * row, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": expr, "legendFormat": legend}
            for n, (legend, expr) in enumerate(panel.lines)
        ],
    }


def with_table(page: str, metrics: tuple[MetricInfo, ...]) -> str:
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + "\n" + _table(metrics) + "\n" + END + tail


def _table(metrics: tuple[MetricInfo, ...]) -> str:
    rows = ["| metric | type | labels | vLLM's name | says |", "|---|---|---|---|---|"]
    for info in sorted(metrics, key=lambda each: each.name):
        labels = ", ".join(f"`{label}`" for label in info.labels)
        total = "_total" if info.kind == "counter" else ""
        vllm = f"`vllm:{info.vllm}{total}`" if info.vllm else ""
        rows.append(f"| `{info.exposed}` | {info.kind} | {labels} | {vllm} | {info.help} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
