"""An agent that makes four calls, two of them at once, and prints what its own log says.

With the argument `provider` it has an OpenTelemetry set-up of its own, with `auto` it has but the one import.
"""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context

import httpx2
from opentelemetry import trace

import mock_server
import occupancy

FETCH_MS = {"x-mock-delay-ms": "500"}
"""Begins after tool_search, of 350 ms, and ends after it."""


def run(client: httpx2.Client) -> None:
    def call(step: str, headers: dict[str, str] | None = None) -> None:
        with occupancy.label(step):
            client.post(f"/generate/{step}", json={"model": "mock-1"}, headers=headers).raise_for_status()

    call("plan")
    with ThreadPoolExecutor() as pool:
        search = pool.submit(copy_context().run, call, "tool_search")
        while occupancy.instrument().in_flight == 0:
            time.sleep(0.001)
        call("tool_fetch", FETCH_MS)
        search.result()
    call("recap")


@contextmanager
def own_provider() -> Iterator[None]:
    """A provider with an exporter, and a span that is current."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(occupancy.OccupancySpanProcessor())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("agent").start_as_current_span("agent"):
        yield
    provider.shutdown()


@contextmanager
def one_import() -> Iterator[None]:
    """Spans are sent at exit."""
    import occupancy.auto  # noqa: F401 - switches the capture on

    yield


with {"provider": own_provider, "auto": one_import}[sys.argv[1]]():
    log = occupancy.instrument()
    with mock_server.serve() as url, httpx2.Client(base_url=url) as client:
        run(client)
summary = log.summary()
print(json.dumps({"n": summary.n, "peak": log.peak, "mean_in_flight": summary.mean_in_flight}))
