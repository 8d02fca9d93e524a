"""Requests as spans: whose children they are, what they say, and what they never say."""

from __future__ import annotations

import builtins
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvasir.core.errors import ConfigError
from kvasir.serve.bodies import BodyBudget
from kvasir.serve.exchange import Exchange
from kvasir.serve.spans import spans_to
from kvasir.serve.tracing import Untraced, open_tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NOTES = {
    "model": "toy",
    "prompt_tokens": 7,
    "output_tokens": 3,
    "choices": 1,
    "queue_time_ms": 100.0,
    "prefill_time_ms": 200.0,
    "generation_time_ms": 300.0,
}


def spans_of(
    path: str = "/v1/completions",
    status: int = 200,
    notes: dict[str, object] | None = None,
    params: dict[str, str] | None = None,
    **headers: str,
) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    spans = spans_to(SimpleSpanProcessor(exporter))
    given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope: dict[str, Any] = {"method": "POST", "path": path, "headers": given}
    nobody: Any = None
    exchange = Exchange(
        {**scope, "path_params": params or {}}, nobody, nobody, BodyBudget(9, 9, patience=1)
    )
    exchange.arrived = time.monotonic() - 1
    exchange.status = status
    exchange.note(notes or {})
    spans.observe(exchange)
    spans.close()
    return list(exporter.get_finished_spans())


def test_a_request_is_a_span_with_its_phases() -> None:
    queue, prefill, decode, request = spans_of(notes=NOTES)
    assert [x.name for x in (queue, prefill, decode)] == ["queue", "prefill", "decode"]
    assert request.name == "POST /v1/completions" and request.parent is None
    assert request.kind.name == "SERVER"
    for child in (queue, prefill, decode):
        assert child.parent is not None and child.parent.span_id == request.context.span_id
    times = [x.end_time - x.start_time for x in (queue, prefill, decode)]  # type: ignore[operator]
    assert [round(x / 1e6) for x in times] == [100, 200, 300]
    assert queue.start_time == request.start_time
    assert (queue.end_time, prefill.end_time) == (prefill.start_time, decode.start_time)
    assert request.end_time - request.start_time > 0.9e9  # type: ignore[operator]
    said = dict(request.attributes or {})
    assert said.pop("kvasir.request_id").startswith("req-")  # type: ignore[union-attr]
    assert said == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.request.model": "toy",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.request.choice.count": 1,
    }


def test_it_belongs_to_the_trace_of_its_client() -> None:
    (span,) = spans_of(traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="a=b")
    assert span.parent is not None and span.parent.is_remote
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.context.trace_state.get("a") == "b"


@pytest.mark.parametrize("given", ["", "garbage", f"00-{'0' * 32}-{PARENT}-01", "00-" + "a" * 9999])
def test_a_parent_that_is_none_begins_a_trace(given: str) -> None:
    (span,) = spans_of(traceparent=given, tracestate="\xff=,,")
    assert span.parent is None


def test_a_trace_that_is_not_sampled_is_not_told() -> None:
    assert spans_of(traceparent=f"00-{TRACE}-{PARENT}-00") == []


def test_errors_and_names() -> None:
    (failed,) = spans_of(status=503, notes={"error": "draining"})
    assert failed.status.status_code.name == "ERROR"
    assert (failed.attributes or {})["error.type"] == "draining"
    (refused,) = spans_of(status=400, notes={"error": "invalid_value"})
    assert refused.status.status_code.name == "UNSET"
    (file,) = spans_of("/v1/files/file-1", params={"file_id": "file-1"})
    assert file.name == "POST /v1/files/{file_id}"
    (unknown,) = spans_of("/no/such/" + "x" * 999, status=404)
    assert unknown.name == "POST"
    assert len((unknown.attributes or {})["url.path"]) == 256  # type: ignore[arg-type]


def test_what_is_private_is_not_told() -> None:
    secrets = {"authorization": "Bearer k3y", "cookie": "k3y"}
    (span,) = spans_of(notes={"body": "the k3y prompt", "user": "k3y"}, **secrets)
    assert "k3y" not in span.to_json()


def test_health_is_not_traced() -> None:
    assert spans_of("/health") == spans_of("/metrics") == []


def test_without_an_endpoint_there_are_none_and_no_library_is_loaded() -> None:
    assert isinstance(open_tracing(None, {}), Untraced)
    assert isinstance(open_tracing(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}), Untraced)


def test_without_the_extra_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "kvasir.serve.spans":
            raise ModuleNotFoundError("no", name="opentelemetry")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ConfigError, match=r"without opentelemetry: pip install 'kvasir-llm\[otel]"):
        open_tracing("http://localhost:4318/v1/traces", {})
