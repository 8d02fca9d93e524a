"""A server tells a collector of its requests, and waits for none."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.harness import running_server

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def collector() -> Iterator[tuple[str, list[Span]]]:
    """Its URL, and the spans that it was sent."""
    found: list[Span] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"] == "gzip":
                body = gzip.decompress(body)
            sent = ExportTraceServiceRequest.FromString(body)
            found.extend(
                span
                for resource in sent.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", found
        finally:
            server.shutdown()
            thread.join()


def test_a_collector_gets_the_spans_of_a_request(toy_folder: Path) -> None:
    with collector() as (url, found):
        with running_server(toy_folder, otlp_traces_endpoint=url) as server:
            body = {"prompt": "the secret prompt", "max_tokens": 5, "ignore_eos": True}
            parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
            assert server.post("/v1/completions", body, **parent).status_code == 200
            server.get("/health")
        names = {span.name: span for span in found}
    assert set(names) == {"queue", "prefill", "decode", "POST /v1/completions"}
    span = names["POST /v1/completions"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    said = {each.key: each.value for each in span.attributes}
    assert said["kvasir.request_id"].string_value == "mine"
    assert said["gen_ai.request.model"].string_value == "toy"
    assert said["gen_ai.usage.output_tokens"].int_value == 5
    assert "secret" not in str(found)


def test_nobody_waits_for_a_collector_that_is_not_there(toy_folder: Path) -> None:
    nowhere = "http://127.0.0.1:9/v1/traces"
    with running_server(toy_folder, otlp_traces_endpoint=nowhere) as server:
        for _ in range(3):
            assert server.post("/v1/completions", {"prompt": "x"}).status_code == 200
        assert server.get("/health").status_code == 200
    assert server.process.returncode == 0
