"""An agent in an existing OpenTelemetry set-up: four calls, two of them at once. Prints what its own log says."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import httpx2
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import mock_server
import occupancy

FETCH_MS = {"x-mock-delay-ms": "500"}
"""Begins after tool_search, of 350 ms, and ends after it."""


def run(client: httpx2.Client) -> None:
    def call(step: str, headers: dict[str, str] | None = None) -> None:
        with occupancy.label(step):
            client.post(f"/generate/{step}", json={}, headers=headers).raise_for_status()

    call("plan")
    with ThreadPoolExecutor() as pool:
        search = pool.submit(copy_context().run, call, "tool_search")
        while occupancy.instrument().in_flight == 0:
            time.sleep(0.001)
        call("tool_fetch", FETCH_MS)
        search.result()
    call("recap")


provider = TracerProvider()
provider.add_span_processor(occupancy.OccupancySpanProcessor())
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)

with mock_server.serve() as url, httpx2.Client(base_url=url) as client:
    log = occupancy.instrument()
    with trace.get_tracer("agent").start_as_current_span("agent"):
        run(client)
provider.shutdown()
summary = log.summary()
print(json.dumps({"n": summary.n, "peak": log.peak, "mean": summary.mean_in_flight}))
