"""Spans under every set-up of a host's: who instruments, which provider there is, when it comes and how it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import host_program

BOTH = ("httpx", "httpx2")
START = """
    from host_program import *
"""
CALL_BOTH = """
    import httpx, httpx2
    server = Server()
    for library in (httpx, httpx2):
        with library.Client() as client:
            assert client.get(server.url + "/chunked").text == "abcde"
"""
TELL = """
    from occupancy.instrumentation import spans
    tell({"spans": span_dicts(exporter), "calls": call_dicts(log), "held": len(spans.held)})
"""
INSTRUMENT_BOTH = """
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor, HTTPX2ClientInstrumentor
    HTTPXClientInstrumentor().instrument()
    HTTPX2ClientInstrumentor().instrument()
"""
OURS = """
    import occupancy
    log = occupancy.instrument()
"""
PROVIDER = """
    provider, exporter = set_up_provider()
"""


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is shared with the process of the tests."""


def check(told: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Each of `count` calls has a span of its own that ends as it ends; give the spans in the order of the calls."""
    spans = {span["span_id"]: span for span in told["spans"]}
    assert [call["span_id"] in spans for call in told["calls"]] == [True] * count
    assert len(told["spans"]) == len(spans) == count
    assert told["held"] == 0
    found = [spans[call["span_id"]] for call in told["calls"]]
    for call, span in zip(told["calls"], found, strict=True):
        assert span["scope"] == "opentelemetry.instrumentation.httpx"
        assert span["attributes"]["occupancy.call_id"] == call["call_id"]
        if call["last_byte_ns"] is not None:
            assert span["end"] - span["events"]["last_byte"] == call["end_ns"] - call["last_byte_ns"]
    return found


# Who instruments, and when the provider comes

WHO = {
    "nobody else": [OURS],
    "the host before us": [INSTRUMENT_BOTH, OURS],
    "the host after us": [OURS, INSTRUMENT_BOTH],
    "we twice": [OURS, OURS],
}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("provider_at", ["first", "last"])
def test_one_span_for_a_call_whoever_instruments(tmp_path: Path, who: str, provider_at: str) -> None:
    steps = [PROVIDER, *WHO[who]] if provider_at == "first" else [*WHO[who], PROVIDER]
    check(host_program.run(tmp_path, START + "".join(steps) + CALL_BOTH + TELL), 2)


def test_provider_is_found_after_the_first_calls(tmp_path: Path) -> None:
    told = host_program.run(tmp_path, START + OURS + CALL_BOTH + PROVIDER + CALL_BOTH + TELL)
    assert [call["span_id"] is None for call in told["calls"]] == [True, True, False, False]
    check(told | {"calls": told["calls"][2:]}, 2)


def test_client_that_is_imported_after_the_first_calls_has_spans_too(tmp_path: Path) -> None:
    program = START + OURS + PROVIDER
    program += """
    server = Server()
    import httpx
    httpx.get(server.url + "/ok")
    import httpx2
    httpx2.get(server.url + "/ok")
    """
    check(host_program.run(tmp_path, program + TELL), 2)


def test_without_an_sdk_the_log_is_complete_and_nothing_is_installed(tmp_path: Path) -> None:
    program = START + OURS
    program += """
    import sys
    server = Server()
    import httpx
    httpx.get(server.url + "/ok")
    without_api = "opentelemetry" in sys.modules
    from opentelemetry import trace
    with trace.get_tracer("host").start_as_current_span("plan"):
        httpx.get(server.url + "/ok")
    tell({
        "calls": call_dicts(log), "without_api": without_api, "provider": trace._TRACER_PROVIDER is not None,
        "imported": [name for name in ("opentelemetry.sdk", "opentelemetry.instrumentation") if name in sys.modules],
    })
    """
    told = host_program.run(tmp_path, program)
    assert [(call["outcome"], call["span_id"], call["trace_id"]) for call in told["calls"]] == [("ok", None, None)] * 2
    assert (told["without_api"], told["provider"], told["imported"]) == (False, False, [])


def test_with_sampling_off_the_log_is_complete(tmp_path: Path) -> None:
    program = """
    from host_program import *
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
    provider, exporter = set_up_provider(sampler=ALWAYS_OFF)
    """
    told = host_program.run(tmp_path, program + OURS + CALL_BOTH + TELL)
    assert [(call["outcome"], call["span_id"]) for call in told["calls"]] == [("ok", None)] * 2
    assert (told["spans"], told["held"]) == ([], 0)


def test_disabled_sdk_gives_no_span_and_a_complete_log(tmp_path: Path) -> None:
    told = host_program.run(tmp_path, START + PROVIDER + OURS + CALL_BOTH + TELL, env={"OTEL_SDK_DISABLED": "true"})
    assert [(call["outcome"], call["span_id"]) for call in told["calls"]] == [("ok", None)] * 2
    assert told["spans"] == []


def test_spans_that_are_switched_off_are_as_they_would_be_without_us(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS + CALL_BOTH + INSTRUMENT_BOTH + CALL_BOTH
    told = host_program.run(tmp_path, program + TELL, env={"OCCUPANCY_SPANS": "0"})
    assert [(call["outcome"], call["span_id"]) for call in told["calls"]] == [("ok", None)] * 4
    assert len(told["spans"]) == 2  # by the host's instrumentors
    assert not [name for span in told["spans"] for name in span["attributes"] if name.startswith("occupancy.")]


@pytest.mark.parametrize("alias_first", [True, False])
def test_alias_is_seen_once(tmp_path: Path, alias_first: bool) -> None:
    alias = """
    import httpx2
    httpx2.alias_httpx()
    """
    program = START + PROVIDER + (alias + OURS if alias_first else OURS + alias) + CALL_BOTH
    program += """
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor, HTTPX2ClientInstrumentor
    instrumentors = HTTPXClientInstrumentor(), HTTPX2ClientInstrumentor()
    assert [instrumentor.is_instrumented_by_opentelemetry for instrumentor in instrumentors] == [False, True]
    """
    told = host_program.run(tmp_path, program + TELL)
    check(told, 2)
    assert [call["client"] for call in told["calls"]] == ["httpx2", "httpx2"]


# A host that instruments later, or in its own way


def test_host_that_instruments_later_gets_its_hooks_and_arguments(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS + CALL_BOTH
    program += """
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor, HTTPX2ClientInstrumentor
    own_provider, own_exporter = set_up_provider(register=False)
    hooked = []
    for instrumentor in (HTTPXClientInstrumentor(), HTTPX2ClientInstrumentor()):
        instrumentor.instrument(
            tracer_provider=own_provider,
            request_hook=lambda span, request: (hooked.append("request"), span.set_attribute("host", "hook")),
            response_hook=lambda span, request, response: hooked.append(response.status_code),
        )
    """
    program += CALL_BOTH
    program += """
    for instrumentor in (HTTPXClientInstrumentor(), HTTPX2ClientInstrumentor()):
        instrumentor.uninstrument()
    """
    program += CALL_BOTH
    program += """
    for instrumentor in (HTTPXClientInstrumentor(), HTTPX2ClientInstrumentor()):
        instrumentor.instrument(tracer_provider=own_provider)
    """
    program += CALL_BOTH
    program += """
    tell({
        "calls": call_dicts(log), "held": 0, "hooked": hooked,
        "spans": span_dicts(exporter), "own": span_dicts(own_exporter),
    })
    """
    told = host_program.run(tmp_path, program)
    by_us, by_host, by_nobody, again = (told["calls"][index : index + 2] for index in range(0, 8, 2))
    check(told | {"calls": by_us}, 2)
    own = check(told | {"calls": by_host + again, "spans": told["own"]}, 4)
    assert [span["attributes"].get("host") for span in own] == ["hook", "hook", None, None]
    assert told["hooked"] == ["request", 200] * 2
    assert [(call["outcome"], call["span_id"]) for call in by_nobody] == [("ok", None)] * 2


def test_host_that_switches_ours_off_gets_no_spans(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS + CALL_BOTH
    program += """
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor, HTTPX2ClientInstrumentor
    HTTPXClientInstrumentor().uninstrument()
    HTTPX2ClientInstrumentor().uninstrument()
    """
    told = host_program.run(tmp_path, program + CALL_BOTH + TELL)
    assert [call["span_id"] is None for call in told["calls"]] == [False, False, True, True]
    assert len(told["spans"]) == 2


@pytest.mark.parametrize("library", BOTH)
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_client_that_the_host_has_instrumented_has_one_span_for_a_call(
    tmp_path: Path, library: str, first: str
) -> None:
    suffix = "2" if library == "httpx2" else ""
    program = START + PROVIDER + OURS
    program += f"""
    import {library} as library
    server = Server()
    if {first == "ours"}:
        library.get(server.url + "/ok")
    from opentelemetry.instrumentation import httpx as otel
    client = library.Client()
    otel.HTTPX{suffix}ClientInstrumentor.instrument_client(client)
    client.get(server.url + "/ok")
    transport = otel.SyncOpenTelemetryTransport{"Httpx2" if suffix else ""}(library.HTTPTransport())
    library.Client(transport=transport).get(server.url + "/ok")
    library.get(server.url + "/ok")
    """
    check(host_program.run(tmp_path, program + TELL, ignore="ResourceWarning"), 4 if first == "ours" else 3)


def test_wrapper_that_somebody_put_over_ours_stays(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS + CALL_BOTH
    program += """
    from wrapt import wrap_function_wrapper
    passed = []
    def pass_on(wrapped, instance, args, kwargs):
        passed.append(1)
        return wrapped(*args, **kwargs)
    wrap_function_wrapper("httpx", "HTTPTransport.handle_request", pass_on)
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
    HTTPXClientInstrumentor().uninstrument()
    """
    program += CALL_BOTH
    program += """
    HTTPXClientInstrumentor().instrument()
    """
    program += CALL_BOTH + "    assert passed == [1, 1]\n"
    told = host_program.run(tmp_path, program + TELL)
    switched_off = told["calls"].pop(2)
    assert (switched_off["client"], switched_off["span_id"]) == ("httpx", None)
    check(told, 5)


def test_conventions_that_the_host_has_chosen_are_untouched(tmp_path: Path) -> None:
    program = START + PROVIDER + INSTRUMENT_BOTH
    program += """
    import httpx
    server = Server()
    with httpx.Client() as client:
        client.get(server.url + "/404")
        import occupancy
        log = occupancy.instrument()
        client.get(server.url + "/404")
    tell(span_dicts(exporter))
    """
    for chosen in ("http", ""):
        without, ours = host_program.run(tmp_path, program, env={"OTEL_SEMCONV_STABILITY_OPT_IN": chosen})
        theirs = {name: ours["attributes"][name] for name in without["attributes"]}
        assert theirs == without["attributes"]
        assert (ours["name"], ours["status"]) == (without["name"], without["status"])
        added = {name for name in ours["attributes"] if name not in theirs and not name.startswith("occupancy.")}
        code = {"code.file.path", "code.line.number", "code.function.name"}
        assert added == code | (set() if chosen else {"error.type"})


# Logfire

LOGFIRE = """
    import logfire
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    def configure():
        exporter = InMemorySpanExporter()
        processor = SimpleSpanProcessor(exporter)
        logfire.configure(
            send_to_logfire=False, console=False, additional_span_processors=[processor], inspect_arguments=False
        )
        return exporter
    exporter = configure()
"""
LOGFIRE_HTTPX = """
    logfire.instrument_httpx()
"""


@pytest.mark.parametrize("order", ["before", "after", "never"])
def test_logfire_in_between(tmp_path: Path, order: str) -> None:
    steps = {
        "before": [LOGFIRE, LOGFIRE_HTTPX, OURS],
        "after": [OURS, LOGFIRE, LOGFIRE_HTTPX],
        "never": [LOGFIRE, OURS],
    }
    told = host_program.run(tmp_path, START + "".join(steps[order]) + CALL_BOTH + TELL)
    check(told, 2)


def test_logfire_that_is_configured_twice(tmp_path: Path) -> None:
    program = START + LOGFIRE + LOGFIRE_HTTPX + OURS + CALL_BOTH
    program += """
    host = httpx.Client()
    response = host.send(host.build_request("GET", server.url + "/half"), stream=True)
    second = configure()  # the provider below is shut down: what is open ends now
    """
    program += CALL_BOTH
    program += """
    last = host.send(host.build_request("GET", server.url + "/half"), stream=True)
    response.close()
    logfire.shutdown()
    last.close()
    host.close()
    tell([span_dicts(exporter), span_dicts(second), call_dicts(log)])
    """
    before, after, calls = host_program.run(tmp_path, program)
    assert [call["outcome"] for call in calls] == ["ok"] * 4 + ["closed_early"] * 2
    assert [span["attributes"]["occupancy.outcome"] for span in before] == ["ok", "ok", "open"]
    assert [span["attributes"]["occupancy.outcome"] for span in after] == ["ok", "ok", "open"]
    spans = [span["span_id"] for span in before[:2] + after[:2] + before[2:] + after[2:]]
    assert [call["span_id"] for call in calls] == spans


def test_body_that_is_read_where_logfire_is_suppressed(tmp_path: Path) -> None:
    program = START + LOGFIRE + LOGFIRE_HTTPX + OURS
    program += """
    import httpx
    server = Server()
    with httpx.Client() as client, client.stream("GET", server.url + "/chunked") as response:
        with logfire.suppress_instrumentation():
            response.read()
    """
    check(host_program.run(tmp_path, program + TELL), 1)


# Spans of others


def test_span_above_is_the_parent_and_the_label(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS
    program += """
    import httpx
    from opentelemetry import trace
    server = Server()
    tracer = trace.get_tracer("genai")
    attributes = {"gen_ai.operation.name": "chat"}
    options = {"kind": trace.SpanKind.CLIENT, "attributes": attributes, "end_on_exit": False}
    with tracer.start_as_current_span("chat m", **options) as above:
        with httpx.Client() as client, client.stream("GET", server.url + "/half") as response:
            next(response.iter_raw())
            above.end()
            assert not above.is_recording()
    provider.force_flush()  # it counts the generator that was left
    """
    told = host_program.run(tmp_path, program + TELL)
    above, span = told["spans"]
    (call,) = told["calls"]
    assert (above["name"], above["attributes"]) == ("chat m", {"gen_ai.operation.name": "chat"})
    assert above["events"] == {}
    assert span["parent"] == above["span_id"] == call["parent_span_id"]
    assert (call["label"], call["span_id"], call["trace_id"]) == ("chat m", span["span_id"], above["trace_id"])
    assert call["run"] == above["trace_id"]


@pytest.mark.parametrize("kind", ["INTERNAL", "CLIENT"])
def test_span_of_a_users_transport_is_left_alone(tmp_path: Path, kind: str) -> None:
    program = START + PROVIDER + OURS
    program += f"""
    import httpx
    from opentelemetry import trace
    server = Server()
    class Traced(httpx.HTTPTransport):
        def handle_request(self, request):
            with trace.get_tracer("user").start_as_current_span("mine", kind=trace.SpanKind.{kind}):
                return super().handle_request(request)
    with httpx.Client(transport=Traced()) as client, client.stream("GET", server.url + "/chunked") as response:
        before = span_dicts(exporter)
        response.read()
    """
    program += """
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
    HTTPXClientInstrumentor().uninstrument()
    with httpx.Client(transport=Traced()) as client:
        client.get(server.url + "/chunked")
    tell([before, span_dicts(exporter)[1:], call_dicts(log)])
    """
    (mine,), (httpx_span, mine_alone), calls = host_program.run(tmp_path, program)
    assert [(span["name"], span["attributes"]) for span in (mine, mine_alone)] == [("mine", {}), ("mine", {})]
    assert (httpx_span["parent"], httpx_span["attributes"]["occupancy.outcome"]) == (mine["span_id"], "ok")
    assert [call["span_id"] for call in calls] == [httpx_span["span_id"], None]


def test_span_of_the_anthropic_sdk_is_left_alone(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS
    program += """
    import anthropic, mock_server
    with mock_server.serve(delay_ms=0) as url:
        with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
            ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
            client.messages.create(**ask)
            with client.messages.create(**ask, stream=True) as events:
                list(events)
    tell({"spans": span_dicts(exporter), "calls": call_dicts(log), "held": 0})
    """
    told = host_program.run(tmp_path, program)
    by_scope: dict[str, list[dict[str, Any]]] = {}
    for span in told["spans"]:
        by_scope.setdefault(span["scope"], []).append(span)
    check(told | {"spans": by_scope["opentelemetry.instrumentation.httpx"]}, 2)
    of_sdk = by_scope["com.anthropic.sdk.python"]
    assert not [name for span in of_sdk for name in span["attributes"] if name.startswith("occupancy.")]
    assert {call["parent_span_id"] for call in told["calls"]} == {span["span_id"] for span in of_sdk}


RETRYING = """
    import httpx
    server = Server()
    class Retrying(httpx.BaseTransport):
        def __init__(self):
            self.inner = httpx.HTTPTransport()
        def handle_request(self, request):
            for path in ("/503", "/503", "/chunked"):
                request.url = request.url.copy_with(path=path)
                response = self.inner.handle_request(request)
                if path != "/chunked":
                    response.read()
            return response
        def close(self):
            self.inner.close()
"""


def test_retrying_transport_has_a_span_for_each_attempt(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS + RETRYING
    program += """
    with httpx.Client(transport=Retrying()) as client:
        assert client.get(server.url + "/").text == "abcde"
    """
    spans = check(host_program.run(tmp_path, program + TELL), 3)
    assert [span["attributes"].get("http.request.resend_count") for span in spans] == [None, 1, 2]
    assert len({span["attributes"]["occupancy.logical_id"] for span in spans}) == 1


def test_retrying_transport_under_one_span_tells_of_the_last_attempt(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS + RETRYING
    program += """
    from opentelemetry.instrumentation.httpx import SyncOpenTelemetryTransport
    with httpx.Client(transport=SyncOpenTelemetryTransport(Retrying())) as client:
        assert client.get(server.url + "/").text == "abcde"
    """
    told = host_program.run(tmp_path, program + TELL)
    (span,) = told["spans"]
    assert [call["span_id"] for call in told["calls"]] == [span["span_id"]] * 3
    last = told["calls"][-1]
    assert (span["attributes"]["occupancy.call_id"], span["attributes"]["occupancy.attempt"]) == (last["call_id"], 2)
    assert span["end"] == span["events"]["last_byte"]


# The processor


def test_processor_alone_switches_the_capture_on(tmp_path: Path) -> None:
    program = START + PROVIDER
    program += """
    import occupancy
    processor = occupancy.OccupancySpanProcessor()
    provider.add_span_processor(processor)
    log = processor.log
    """
    program += CALL_BOTH + "    assert occupancy.instrument() is log\n"
    check(host_program.run(tmp_path, program + TELL), 2)


def test_processor_with_a_log_of_its_own_puts_its_counts_on_the_spans(tmp_path: Path) -> None:
    program = START + PROVIDER
    program += """
    import occupancy, httpx
    server = Server()
    all_calls = occupancy.instrument()
    client = httpx.Client()
    opened = client.send(client.build_request("GET", server.url + "/half"), stream=True)
    log = occupancy.OccupancyLog()
    provider.add_span_processor(occupancy.OccupancySpanProcessor(log))
    occupancy.instrument()
    client.get(server.url + "/ok")
    opened.close()
    client.close()
    tell([span_dicts(exporter), call_dicts(log), call_dicts(all_calls)])
    """
    spans, calls, all_calls = host_program.run(tmp_path, program)
    assert [call["path"] for call in calls] == ["/ok"]
    assert [call["path"] for call in all_calls] == ["/ok", "/half"]
    assert [call["in_flight_start"] for call in all_calls] == [2, 1]
    assert calls[0]["in_flight_start"] == spans[0]["attributes"]["occupancy.in_flight_start"] == 1


def test_spans_that_are_not_held_end_where_opentelemetry_ends_them(tmp_path: Path) -> None:
    program = START + PROVIDER
    program += """
    import occupancy, httpx, time
    processor = occupancy.OccupancySpanProcessor(hold_span_end=False)
    provider.add_span_processor(processor)
    log = processor.log
    server = Server()
    with httpx.Client() as client, client.stream("GET", server.url + "/chunked") as response:
        after_headers = time.time_ns()
        response.read()
    tell({"spans": span_dicts(exporter), "calls": call_dicts(log), "held": 0, "after_headers": after_headers})
    """
    told = host_program.run(tmp_path, program)
    (span,) = told["spans"]
    (call,) = told["calls"]
    assert span["start"] < span["end"] < told["after_headers"]
    assert span["events"]["last_byte"] - span["events"]["first_byte"] == call["last_byte_ns"] - call["first_byte_ns"]
    assert span["events"]["first_byte"] > span["end"]  # the true time, though the span has ended
    assert span["attributes"]["occupancy.total_ms"] == call["total_ms"]


# Flushing, shutting down, leaving

OPEN_STREAM = """
    import httpx
    server = Server()
    client = httpx.Client()
    opened = client.send(client.build_request("GET", server.url + "/half"), stream=True)
    chunks = opened.iter_raw()
    next(chunks)
"""
ORDERS = {"ours first": "provider.add_span_processor(ours); provider.add_span_processor(batch)"}
ORDERS["ours last"] = "; ".join(reversed(ORDERS["ours first"].split("; ")))
ORDERS["ours added by us"] = "provider.add_span_processor(batch)"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("register", [True, False])
def test_flush_and_shutdown_settle_in_any_order_of_processors(tmp_path: Path, order: str, register: bool) -> None:
    program = f"""
    from host_program import *
    import gc, occupancy
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    batch = BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000)
    ours = occupancy.OccupancySpanProcessor()
    log = ours.log
    {ORDERS[order]}
    if {register}:
        trace.set_tracer_provider(provider)
    else:
        HTTPXClientInstrumentor().instrument(tracer_provider=provider)
    """
    program += OPEN_STREAM
    program += """
    lost = client.send(client.build_request("GET", server.url + "/half"), stream=True)
    lost = None
    gc.collect()
    provider.force_flush()
    flushed = span_dicts(exporter)
    provider.shutdown()
    shut_down = span_dicts(exporter)[len(flushed):]
    chunks.close()
    opened.close()
    client.close()
    tell([flushed, shut_down, call_dicts(log), len(occupancy.instrumentation.spans.held)])
    """
    flushed, shut_down, calls, held = host_program.run(tmp_path, program)
    assert [span["attributes"]["occupancy.outcome"] for span in flushed] == ["abandoned"]
    assert [span["attributes"]["occupancy.outcome"] for span in shut_down] == ["open"]
    assert shut_down[0]["end"] == shut_down[0]["events"]["last_byte"]
    assert [call["outcome"] for call in calls] == ["abandoned", "closed_early"]
    assert held == 0


WRITE_SPANS = """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    class Printing(SpanExporter):
        def export(self, spans):
            for span in spans:
                tell(span_dict(span))
            return SpanExportResult.SUCCESS
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Printing(), schedule_delay_millis=3_600_000))
    trace.set_tracer_provider(provider)
"""


@pytest.mark.parametrize("code", [0, 3])
def test_span_of_a_stream_that_is_open_at_exit_is_exported(tmp_path: Path, code: int) -> None:
    program = START + OURS + WRITE_SPANS + OPEN_STREAM + f"    sys.exit({code})\n"
    span = host_program.run(tmp_path, program, code=code, ignore="ResourceWarning")
    assert span["attributes"]["occupancy.outcome"] == "abandoned"
    assert span["end"] == span["events"]["last_byte"]


def test_span_of_an_open_stream_survives_uninstrument(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS + OPEN_STREAM
    program += """
    occupancy.uninstrument()
    before = span_dicts(exporter)
    opened.close()
    client.close()
    """
    told = host_program.run(tmp_path, program + TELL + "    assert before == []\n", ignore="ResourceWarning")
    (span,) = check(told, 1)
    assert span["attributes"]["occupancy.outcome"] == "closed_early"


def test_collector_that_is_down_does_not_keep_the_process(tmp_path: Path) -> None:
    program = START + OURS
    program += """
    import logging, threading
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    logging.disable()  # the exporter tells of the collector
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"http://127.0.0.1:{port}/v1/traces", timeout=1)))
    trace.set_tracer_provider(provider)
    """
    program += OPEN_STREAM + "    tell(len(call_dicts(log)))\n    sys.exit(5)\n"
    assert host_program.run(tmp_path, program, code=5, ignore="ResourceWarning") == 0


def test_forked_child_leaves_the_parents_span_and_has_its_own(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS + OPEN_STREAM
    program += """
    import os
    from occupancy.instrumentation import spans
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        exporter.clear()
        chunks.close()
        opened.close()
        with httpx.Client() as own:
            own.get(server.url + "/ok")
        provider.force_flush()
        spans.leave()
        told = {"spans": span_dicts(exporter), "calls": call_dicts(log), "held": len(spans.held)}
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        of_child = json.loads(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    before = len(exporter.get_finished_spans())
    opened.close()
    client.close()
    tell([of_child, before, {"spans": span_dicts(exporter), "calls": call_dicts(log), "held": len(spans.held)}])
    """
    ignore = "DeprecationWarning"  # of 3.12 and later: threads and fork
    of_child, before, of_parent = host_program.run(tmp_path, program, ignore=ignore)
    (span,) = check(of_child, 1)
    assert span["attributes"]["occupancy.in_flight_start"] == 1
    assert before == 0
    (span,) = check(of_parent, 1)
    assert span["attributes"]["occupancy.outcome"] == "closed_early"


# Exporters and processors of the host's


def test_calls_of_exporters_are_not_seen(tmp_path: Path) -> None:
    program = START
    program += """
    import httpx, occupancy
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
    server = Server()
    exported = []
    class OverHttpx(SpanExporter):
        def export(self, spans):
            exported.extend(spans)
            with httpx.Client() as client:
                assert client.post(server.url + "/exported/ok", content=b"spans").text == "hello"
            return SpanExportResult.SUCCESS
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OverHttpx()))
    provider.add_span_processor(BatchSpanProcessor(OverHttpx()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(server.url + "/v1/traces/ok")))
    trace.set_tracer_provider(provider)
    log = occupancy.instrument()
    with httpx.Client() as client:
        client.get(server.url + "/ok")
        client.get(server.url + "/ok")
    provider.force_flush()
    provider.shutdown()
    tell([[call["path"] for call in call_dicts(log)], len(exported), len(server.seen), log.peak])
    """
    paths, exported, requests, peak = host_program.run(tmp_path, program)
    assert paths == ["/ok", "/ok"]
    assert (exported, peak) == (4, 1)
    assert requests == 2 + 2 + 1 + 1  # ours, one at once for each, a batch, a batch by OTLP


def test_slow_exporter_holds_no_lock_of_ours(tmp_path: Path) -> None:
    program = START
    program += """
    import httpx, occupancy
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    exporting, go_on, ended = threading.Event(), threading.Event(), []
    class Slow(SpanProcessor):
        def on_end(self, span):
            ended.append(span.name)
            if len(ended) == 1:
                exporting.set()
                assert go_on.wait(30)
    provider = TracerProvider()
    provider.add_span_processor(Slow())
    trace.set_tracer_provider(provider)
    log = occupancy.instrument()
    server = Server()
    first = threading.Thread(target=httpx.get, args=(server.url + "/ok",))
    first.start()
    assert exporting.wait(30)
    httpx.get(server.url + "/ok")  # from start to end while the first call's span is being exported
    told = [log.in_flight, log.finished, len(ended)]
    go_on.set()
    first.join()
    tell(told)
    """
    assert host_program.run(tmp_path, program) == [0, 2, 2]


def test_processor_that_fails_does_not_break_the_request(tmp_path: Path) -> None:
    program = START + PROVIDER
    program += """
    from opentelemetry.sdk.trace import SpanProcessor
    class Failing(SpanProcessor):
        def on_end(self, span):
            raise ValueError("broken processor")
    provider.add_span_processor(Failing())
    """
    program += OURS + CALL_BOTH
    told = host_program.run(tmp_path, program + TELL, log="occupancy failed in")
    check(told, 2)


def test_no_context_is_detached_elsewhere(tmp_path: Path) -> None:
    program = START + PROVIDER + OURS
    program += """
    import asyncio, contextvars, httpx
    from opentelemetry import trace
    server = Server()
    async def events(client):
        with trace.get_tracer("host").start_as_current_span("chat"):
            response = await client.send(client.build_request("GET", server.url + "/half"), stream=True)
        async for chunk in response.aiter_raw():
            yield chunk
    async def main():
        async with httpx.AsyncClient() as client:
            generator = events(client)
            assert await anext(generator) == b"abc"
            await asyncio.create_task(generator.aclose(), context=contextvars.Context())
            await (await client.send(client.build_request("GET", server.url + "/ok"), stream=True)).aread()
        provider.force_flush()
    asyncio.run(main())
    """
    program += TELL
    told = host_program.run(tmp_path, program)  # nothing on stderr
    assert sorted(call["outcome"] for call in told["calls"]) == ["closed_early", "ok"]
    check(told | {"spans": [span for span in told["spans"] if span["name"] != "chat"]}, 2)


# Switching on and off


def test_uninstrument_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    program = START + PROVIDER
    program += """
    import httpx, httpx2, httpcore, httpcore2, occupancy
    from opentelemetry.instrumentation import httpx as otel
    from opentelemetry.sdk import trace as sdk
    owners = [
        getattr(module, name) for module in (httpx, httpx2)
        for name in ("Client", "AsyncClient", "HTTPTransport", "AsyncHTTPTransport")
    ]
    pools = ("ConnectionPool", "AsyncConnectionPool")
    owners += [getattr(module, name) for module in (httpcore, httpcore2) for name in pools]
    owners += [otel.HTTPXClientInstrumentor, otel.HTTPX2ClientInstrumentor, sdk.Span, sdk.TracerProvider]
    instrumentors = [otel.HTTPXClientInstrumentor(), otel.HTTPX2ClientInstrumentor()]
    def look():
        state = [dict(vars(owner)) for owner in owners] + [dict(vars(instrumentor)) for instrumentor in instrumentors]
        for attributes in state:
            attributes.pop("_is_instrumented_by_opentelemetry", None)
            attributes.pop("_abc_impl", None)
        return state
    def same(one, other):
        return all(
            before.keys() == after.keys() and all(before[name] is after[name] for name in before)
            for before, after in zip(one, other, strict=True)
        )
    server = Server()
    def call():
        for library in (httpx, httpx2):
            with library.Client() as client:
                client.get(server.url + "/ok")
    before = look()
    occupancy.uninstrument()
    for _ in range(3):
        occupancy.instrument()
        log = occupancy.instrument()
        call()
        assert not same(before, look())
        assert all(instrumentor.is_instrumented_by_opentelemetry for instrumentor in instrumentors)
        occupancy.uninstrument()
        occupancy.uninstrument()
        assert same(before, look())
        assert not any(instrumentor.is_instrumented_by_opentelemetry for instrumentor in instrumentors)
        with occupancy.record() as block, occupancy.record():
            call()
        assert block.finished == 2 and same(before, look())
    call()
    for instrumentor in instrumentors:
        instrumentor.instrument()
    hosts = look()
    occupancy.instrument()
    call()
    occupancy.uninstrument()
    assert same(hosts, look())
    assert all(instrumentor.is_instrumented_by_opentelemetry for instrumentor in instrumentors)
    tell([log.finished, len(exporter.get_finished_spans())])
    """
    assert host_program.run(tmp_path, program) == [8, 3 * 4 + 2]


# Our own faults

FAULTS = """
    import logging, httpx, httpx2, occupancy, occupancy.capture
    from occupancy import _guard
    from occupancy.instrumentation import provider as provider_module, spans
    targets = [
        (spans, "is_suppressed claim describe new_attributes attributes conventional_attributes"),
        (provider_module, "look_for_provider _use _switch_on has_span is_http_span attach _put_first"),
        (spans.HeldEnd, "__init__ await_release settle _step _end_ns _release"),
        (provider_module.OnceTracer, "__init__ get_tracer"),
        (provider_module.Switched, "__init__ _methods _yielding withdraw"),
    ]
    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
    logging.getLogger().addHandler(Lines())
    def fail(*args, **kwargs):
        raise RuntimeError("a fault of ours")
    server = Server()
    told = {}
    for owner, names in targets:
        for name in names.split():
            exporter.clear()
            _guard._reported.clear()
            lines, texts = [], []
            provider_module._attached = None
            original = getattr(owner, name)
            setattr(owner, name, fail)
            log = occupancy.OccupancyLog()
            occupancy.capture.record_into(log)
            for library in (httpx, httpx2):
                with library.Client() as client:
                    texts.append(client.get(server.url + "/chunked").text)
                    texts.append(client.head(server.url + "/head").text)
            occupancy.capture.stop_recording(log)
            provider.force_flush()
            setattr(owner, name, original)
            provider_module.detach()
            told[f"{owner.__name__.rpartition('.')[2]}.{name}"] = {
                "texts": texts, "lines": lines, "held": len(spans.held), "spans": span_dicts(exporter),
                "outcomes": [call["outcome"] for call in call_dicts(log)],
            }
    for library in (httpx, httpx2):  # after all that it works as before
        with occupancy.record() as log:
            library.get(server.url + "/chunked")
            library.head(server.url + "/head")
        assert [call.outcome for call in log.calls] == ["ok", "ok"]
        assert all(call.span_id for call in log.calls)
    tell(told)
"""
NO_SPAN = {"look_for_provider", "_use", "_switch_on", "get_tracer", "_methods", "_yielding"}
"""Functions without which OpenTelemetry's instrumentors are not switched on, beside the constructors."""


def test_faults_of_ours_change_nothing_for_the_host(tmp_path: Path) -> None:
    told = host_program.run(tmp_path, START + PROVIDER + FAULTS)
    for name, found in told.items():
        assert found["texts"] == ["abcde", ""] * 2, name
        assert found["outcomes"] == ["ok"] * 4, name
        assert found["held"] == 0, name
        owner, _, function = name.partition(".")
        no_span = function in NO_SPAN or (function == "__init__" and owner != "HeldEnd")
        assert len(found["spans"]) == (0 if no_span else 4), name
        # Each place that the fault is met at tells of it once, however many calls there are.
        assert 0 < len(found["lines"]) == len(set(found["lines"])) or function == "settle", (name, found["lines"])
        assert all(line.startswith("occupancy failed in ") for line in found["lines"]), name
