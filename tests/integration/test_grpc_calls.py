"""A program whose calls pass no hook of ours: a gRPC client, whose spans OpenTelemetry's instrumentation makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import occupancy

from . import host_program
from .collector import collector

AGENT = """
import threading
from concurrent.futures import ThreadPoolExecutor
import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages, trace_service_pb2_grpc as service

both = threading.Barrier(2)

class Model(service.TraceServiceServicer):
    def Export(self, request, context):
        both.wait(30)  # answers two at once
        return messages.ExportTraceServiceResponse()

server = grpc.server(ThreadPoolExecutor(2))
service.add_TraceServiceServicer_to_server(Model(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, ThreadPoolExecutor(2) as pool:
    stub = service.TraceServiceStub(channel)
    list(pool.map(stub.Export, [messages.ExportTraceServiceRequest()] * 4))
server.stop(None).wait()
"""
INSTRUMENT = Path(sys.executable).with_name("opentelemetry-instrument")


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is shared with the process of the tests."""


def test_grpc_calls_have_an_occupancy(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OCCUPANCY_", "OTEL_"))}
    with collector() as sink:
        variables = {
            "PYTHONPATH": str(host_program.ROOT),
            "OCCUPANCY_JOURNAL": "calls.jsonl",
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        }
        command = [str(INSTRUMENT), sys.executable, "agent.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=kept | variables, capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    log = occupancy.read(tmp_path / "calls.jsonl")
    assert (len(log.calls), log.peak, log.summary().peak) == (4, 2, 2)
    clients = {span["span_id"]: span for span in sink.spans if span["kind"] == 3}
    assert {call.span_id for call in log.calls} == set(clients)
    for call in log.calls:
        span = clients[call.span_id]
        assert (call.total_ms, call.outcome, call.client) == ((span["end"] - span["start"]) / 1e6, "ok", "grpc")
        assert call.label == span["name"]
