"""A request as OpenTelemetry's spans: one of the server, and in it queue, prefill and decode.

They are made when it has ended, from times that are measured anyway. Names of attributes are those
of OpenTelemetry's conventions for HTTP servers and generative models; neither prompts nor answers,
keys or users are in them.
"""

from __future__ import annotations

import time

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvasir import __version__
from kvasir.serve.exchange import Exchange
from kvasir.serve.request_log import MAX_PATH, QUIET

CARRIED = ("traceparent", "tracestate")
"""Headers of W3C's Trace Context."""
CLOSE_MS = 3000
NANOSECONDS = 1_000_000_000
PHASES = {
    "queue": "queue_time_ms",
    "prefill": "prefill_time_ms",
    "decode": "generation_time_ms",
}
"""One after the other, by what their time is noted as."""
ATTRIBUTES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "choices": "gen_ai.request.choice.count",
    "error": "error.type",
}
"""By what is noted."""


class Spans(msgspec.Struct, frozen=True):
    provider: TracerProvider
    tracer: Tracer

    def observe(self, exchange: Exchange) -> None:
        """Health routes and scrapes have none."""
        scope = exchange.scope
        if scope["path"] in QUIET:
            return
        now = time.time_ns()
        began = now - int((time.monotonic() - exchange.arrived) * NANOSECONDS)
        headers = {name: exchange.header(name.encode()) or b"" for name in CARRIED}
        carrier = {name: value.decode("latin-1") for name, value in headers.items() if value}
        span = self.tracer.start_span(
            _name(exchange),
            TraceContextTextMapPropagator().extract(carrier),
            SpanKind.SERVER,
            {
                "http.request.method": scope["method"],
                "url.path": str(scope["path"])[:MAX_PATH],
                "http.response.status_code": exchange.status,
                "kvasir.request_id": exchange.id,
            },
            start_time=began,
        )
        for name, attribute in ATTRIBUTES.items():
            value = exchange.notes.get(name)
            if isinstance(value, str | int):
                span.set_attribute(attribute, value)
        if exchange.status >= 500:
            span.set_status(StatusCode.ERROR)
        self._phases(exchange, span, began)
        span.end(now)

    def _phases(self, exchange: Exchange, parent: Span, began: int) -> None:
        context = set_span_in_context(parent)
        for name, noted in PHASES.items():
            took = exchange.notes.get(noted)
            if isinstance(took, int | float):
                end = began + int(took * NANOSECONDS / 1000)
                self.tracer.start_span(name, context, start_time=began).end(end)
                began = end

    def close(self) -> None:
        self.provider.force_flush(CLOSE_MS)
        self.provider.shutdown()


def _name(exchange: Exchange) -> str:
    """Method and route: names in the path are those of its parameters, so that there are few."""
    path = str(exchange.scope["path"])
    for name, value in exchange.path_params.items():
        path = path.replace(str(value), f"{{{name}}}")
    method = str(exchange.scope["method"])
    return method if exchange.status == 404 else f"{method} {path}"


def spans_to(processor: SpanProcessor) -> Spans:
    named = {SERVICE_NAME: "kvasir", SERVICE_VERSION: __version__}
    resource = Resource(named).merge(Resource.create())
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(processor)
    return Spans(provider, provider.get_tracer("kvasir", __version__))


def export_spans(endpoint: str | None) -> Spans:
    """Over OTLP and HTTP, in batches and from a thread; what comes faster is dropped."""
    return spans_to(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
