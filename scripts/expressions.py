"""Pieces of PromQL over metrics that exist: a name that does not is a KeyError."""

from __future__ import annotations

from kvasir.serve.metric_table import METRICS, MODEL

INFOS = {info.name: info for info in METRICS}


def series(name: str, model: str = "") -> str:
    """``name`` as it is exposed; of the models that match ``model``, where the metric has them."""
    info = INFOS[name]
    chosen = f'{{{MODEL}=~"{model}"}}' if model and MODEL in info.labels else ""
    return info.exposed + chosen


def rate(name: str, window: str, model: str = "") -> str:
    """Of a counter, in a second."""
    return f"rate({series(name, model)}[{window}])"


def quantile(q: float, name: str, window: str, model: str = "") -> str:
    """Of a histogram, for each model where it has them."""
    info = INFOS[name]
    by = f"le, {MODEL}" if MODEL in info.labels else "le"
    chosen = series(name, model).removeprefix(info.exposed)
    return f"histogram_quantile({q}, sum by ({by}) (rate({info.exposed}_bucket{chosen}[{window}])))"


def coded(window: str, codes: str) -> str:
    """Whether requests failed with one of ``codes`` (a regular expression)."""
    failed = f'{series("request_errors")}{{code=~"{codes}"}}'
    return f"sum by (instance, code) (rate({failed}[{window}])) > 0"
