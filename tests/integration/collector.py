"""A small OTLP collector for tests: takes spans over HTTP on loopback, or fails as a test wants it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

HANG = "hang"


class Collector:
    """What has come, and how it answers.

    Args:
        answer: An HTTP status, or `HANG`: it takes the request and never answers.
    """

    def __init__(self, answer: int | str = 200) -> None:
        self.answer = answer
        self.headers: list[dict[str, str]] = []
        """The headers of each request, by names in lower case."""
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        """The path and the message of each request."""
        self.leave = threading.Event()
        self.url = ""

    @property
    def spans(self) -> list[dict[str, Any]]:
        """All spans as plain values, in the order of their starts."""
        found = [
            _span_dict(span, scope.scope.name, _values(resource.resource.attributes))
            for _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: span["start"])

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        """Keep a request."""
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if path.endswith(("/metrics", "/logs")):
            return  # not what is looked at here
        self.headers.append(headers)
        self.requests.append((path, ExportTraceServiceRequest.FromString(body)))


@contextmanager
def collector(answer: int | str = 200) -> Iterator[Collector]:
    """Run a collector on a free loopback port."""
    found = Collector(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            if found.answer == HANG:
                found.leave.wait(60)
                return
            self.send_response(int(found.answer))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        found.leave.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _span_dict(span: Any, scope: str, resource: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": span.name,
        "scope": scope,
        "resource": resource,
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent": span.parent_span_id.hex() or None,
        "kind": span.kind,
        "status": (span.status.code, span.status.message),
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "attributes": _values(span.attributes),
        "events": {event.name: event.time_unix_nano for event in span.events},
    }


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    """Run a collector that takes OTLP over gRPC."""
    import grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    found = Collector()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]  # made by a compiler, untyped
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
            found.requests.append(("", request))
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    found.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield found
    finally:
        server.stop(None).wait()
