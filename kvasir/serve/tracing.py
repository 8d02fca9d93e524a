"""Whether requests are traced; the libraries are loaded only then, and are an extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kvasir.core.errors import ConfigError
from kvasir.serve.exchange import Exchange

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Of OpenTelemetry: each says where spans go, and so that there are any."""


class Tracing(Protocol):
    def observe(self, exchange: Exchange) -> None:
        """Tells what became of one."""
        ...

    def close(self) -> None:
        """Sends what is left, for a few seconds at most."""
        ...


class Untraced:
    def observe(self, exchange: Exchange) -> None:
        pass

    def close(self) -> None:
        pass


def open_tracing(endpoint: str | None, variables: Mapping[str, str]) -> Tracing:
    """``endpoint``: the URL that takes spans, where no variable says it. Raises ConfigError without
    the libraries."""
    if endpoint is None and not any(variables.get(name) for name in VARIABLES):
        return Untraced()
    try:
        from kvasir.serve.spans import export_spans
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"requests cannot be traced without {error.name}: pip install 'kvasir-llm[otel]', or "
            f"leave --otlp-traces-endpoint and {VARIABLES[0]} out"
        ) from None
    return export_spans(endpoint)
