"""OpenTelemetry's spans of the clients that the host has instrumented, before us or after: one for each, to its end."""

import asyncio
import importlib
import urllib.request
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import requests
import urllib3
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import mock_server
import occupancy
from occupancy import Call

BODY = "/generate/plan?x-mock-delay-ms=0&x-mock-chunks=2&x-mock-chunk-gap-ms=30"
INSTRUMENTORS = {
    "requests": ("requests", "RequestsInstrumentor"),
    "urllib3": ("urllib3", "URLLib3Instrumentor"),
    "urllib": ("urllib", "URLLibInstrumentor"),
    "aiohttp": ("aiohttp_client", "AioHttpClientInstrumentor"),
}


def ask_requests(url: str, headers: dict[str, str]) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, headers=headers, stream=True).content  # noqa: B018


def ask_urllib3(url: str, headers: dict[str, str]) -> None:
    retries = urllib3.Retry(3, status_forcelist=[503], backoff_factor=0)
    with urllib3.PoolManager(retries=retries) as pools:
        pools.request("GET", url, headers=headers, preload_content=False).read()


def ask_urllib(url: str, headers: dict[str, str]) -> None:
    urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read()


def ask_aiohttp(url: str, headers: dict[str, str]) -> None:
    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
            await response.read()

    asyncio.run(ask())


ASK = {"requests": ask_requests, "urllib3": ask_urllib3, "urllib": ask_urllib, "aiohttp": ask_aiohttp}


class Host:
    """A program with a provider of its own."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("host")

    def spans(self) -> list[ReadableSpan]:
        """Those of HTTP clients that have ended."""
        return [span for span in self.exporter.get_finished_spans() if span.kind is SpanKind.CLIENT]


@pytest.fixture
def host(fresh: None) -> Host:
    return Host()


@pytest.fixture(params=INSTRUMENTORS)
def client(request: pytest.FixtureRequest, host: Host) -> Iterator[tuple[str, Any]]:
    """Each client with what instruments it."""
    name = request.param
    module = f"opentelemetry.instrumentation.{INSTRUMENTORS[name][0]}"
    instrumentor = getattr(importlib.import_module(module), INSTRUMENTORS[name][1])()
    yield name, instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


def ask_below_a_span(
    client: tuple[str, Any], host: Host, url: str, order: str, headers: dict[str, str] | None = None
) -> tuple[list[ReadableSpan], list[Call]]:
    """One request of the program, in a span of the host's."""
    name, instrumentor = client
    if order == "before":
        instrumentor.instrument(tracer_provider=host.provider)
    with occupancy.record() as log:
        if order == "after":
            instrumentor.instrument(tracer_provider=host.provider)
        with host.tracer.start_as_current_span("step"):
            ASK[name](url, headers or {})
    return host.spans(), sorted(log.calls, key=lambda call: call.call_id)


@pytest.mark.parametrize("order", ["before", "after"])
def test_span_is_claimed_and_held(client: Any, host: Host, gateway: mock_server.GatewayUrl, order: str) -> None:
    (span,), (call,) = ask_below_a_span(client, host, gateway + BODY, order)
    (step,) = [span for span in host.exporter.get_finished_spans() if span.name == "step"]
    assert call.client == client[0]
    assert call.span_id == f"{span.context.span_id:016x}"
    assert call.trace_id == f"{span.context.trace_id:032x}"
    assert call.parent_span_id == f"{step.context.span_id:016x}"
    assert span.attributes["occupancy.call_id"] == call.call_id
    assert span.attributes["occupancy.outcome"] == "ok"
    assert [event.name for event in span.events] == ["first_byte", "last_byte"]
    first, last = (event.timestamp for event in span.events)
    assert span.end_time == last
    assert last - first == call.last_byte_ns - call.first_byte_ns > 0


@pytest.mark.parametrize("order", ["before", "after"])
def test_redirects_are_attempts_under_one_span(
    client: Any, host: Host, gateway: mock_server.GatewayUrl, order: str
) -> None:
    spans, calls = ask_below_a_span(client, host, gateway + BODY, order, {"x-mock-redirect": "2"})
    assert [call.status for call in calls] == [307, 307, 200]
    assert [call.attempt for call in calls] == [0, 1, 2]
    assert len({call.parent_span_id for call in calls}) == 1
    by_id = {f"{span.context.span_id:016x}": span for span in spans}
    assert {call.span_id for call in calls} == set(by_id)
    last = by_id[calls[-1].span_id]
    assert last.attributes["occupancy.call_id"] == calls[-1].call_id
    assert last.attributes["http.request.resend_count"] == 2
    assert [event.name for event in last.events][-1:] == ["last_byte"]


def test_with_the_processor_it_counts_once(client: Any, host: Host, gateway: mock_server.GatewayUrl) -> None:
    """A span of a client is a call of its own only where no hook sees it."""
    name, instrumentor = client
    log = occupancy.OccupancyLog()
    with occupancy.record():  # which takes the hooks out
        host.provider.add_span_processor(occupancy.OccupancySpanProcessor(log))
        instrumentor.instrument(tracer_provider=host.provider)
        with host.tracer.start_as_current_span("step"):
            ASK[name](gateway + BODY, {})
        occupancy.capture.stop_recording(log)
    (call,) = log.calls
    assert (call.client, call.label, call.outcome) == (name, "step", "ok")
    assert len(host.spans()) == 1


def test_suppressed_it_is_not_seen(client: Any, host: Host, gateway: mock_server.GatewayUrl) -> None:
    name, instrumentor = client
    instrumentor.instrument(tracer_provider=host.provider)
    with occupancy.record() as log, suppress_instrumentation():
        ASK[name](gateway + BODY, {})
    assert (log.calls, host.spans()) == ([], [])


def test_unsampled_it_is_counted(client: Any, host: Host, gateway: mock_server.GatewayUrl) -> None:
    sampling = importlib.import_module("opentelemetry.sdk.trace.sampling")
    name, instrumentor = client
    instrumentor.instrument(tracer_provider=TracerProvider(sampler=sampling.ALWAYS_OFF))
    with occupancy.record() as log:
        ASK[name](gateway + BODY, {})
    assert [call.outcome for call in log.calls] == ["ok"]


def test_requests_and_urllib3_both_instrumented(host: Host, gateway: mock_server.GatewayUrl) -> None:
    instrumentors = []
    for name in ("requests", "urllib3"):
        module = importlib.import_module(f"opentelemetry.instrumentation.{name}")
        instrumentors.append(getattr(module, INSTRUMENTORS[name][1])())
        instrumentors[-1].instrument(tracer_provider=host.provider)
    try:
        with occupancy.record() as log:
            ask_requests(gateway + BODY, {})
    finally:
        for instrumentor in instrumentors:
            instrumentor.uninstrument()
    (span,), (call,) = host.spans(), log.calls
    assert (call.client, call.span_id) == ("requests", f"{span.context.span_id:016x}")
