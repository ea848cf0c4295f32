"""Each format of traces in the shapes it is met in; what is broken costs itself alone and is named."""

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from occupancy.call import Call
from occupancy.errors import ReadError
from occupancy.formats import times
from occupancy.log import OccupancyLog
from occupancy.reading import read

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
START_NS, END_NS = 1_790_000_000_123_456_789, 1_790_000_001_000_000_001

Saved = Callable[..., OccupancyLog]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Writes a file, and reads it."""

    def save(content: Any, select: str | None = "all", name: str = "trace") -> OccupancyLog:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return read(path, select)

    return save


def otlp_span(**changes: Any) -> dict[str, Any]:
    span = {
        "traceId": TRACE,
        "spanId": SPAN,
        "parentSpanId": PARENT,
        "name": "GET",
        "kind": 3,
        "startTimeUnixNano": str(START_NS),
        "endTimeUnixNano": str(END_NS),
        "attributes": [
            {"key": "http.request.method", "value": {"stringValue": "GET"}},
            {"key": "url.full", "value": {"stringValue": "http://me:secret@api.example:8080/v1/a%20b?key=secret#x"}},
            {"key": "http.response.status_code", "value": {"intValue": "503"}},
            {"key": "many", "value": {"arrayValue": {"values": [{"intValue": "1"}, {"boolValue": True}]}}},
            {"key": "map", "value": {"kvlistValue": {"values": [{"key": "x", "value": {"doubleValue": 1.5}}]}}},
            {"key": "nothing", "value": {}},
        ],
    }
    return {name: value for name, value in (span | changes).items() if value is not ...}


def in_base64(digits: str) -> str:
    return base64.b64encode(bytes.fromhex(digits)).decode()


def otlp(*spans: Any) -> dict[str, Any]:
    scope = {"name": "opentelemetry.instrumentation.httpx"}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": scope, "spans": list(spans)}]}]}


def the_call(log: OccupancyLog) -> Call:
    assert log.bad_rows == []
    (call,) = log.calls
    return call


def test_what_a_client_span_says(saved: Saved) -> None:
    call = the_call(saved(otlp(otlp_span()), select=None))
    assert (call.start_ns, call.end_ns) == (START_NS, END_NS)
    assert (call.method, call.host, call.path) == ("GET", "api.example:8080", "/v1/a b")
    assert (call.status, call.outcome, call.error_type) == (503, "http_error", "503")
    assert (call.trace_id, call.span_id, call.parent_span_id, call.run) == (TRACE, SPAN, PARENT, TRACE)
    assert (call.client, call.label, call.kind) == ("httpx", "GET", "tool")
    assert "secret" not in repr(call)


@pytest.mark.parametrize(
    "changes",
    [
        {"startTimeUnixNano": START_NS, "endTimeUnixNano": END_NS},
        {"traceId": TRACE.upper(), "spanId": SPAN.upper()},
        {
            "traceId": base64.b64encode(bytes.fromhex(TRACE)).decode(),
            "spanId": base64.b64encode(bytes.fromhex(SPAN)).decode(),
        },
        {"kind": "SPAN_KIND_CLIENT", "status": {"code": "STATUS_CODE_UNSET"}},
        {"kind": "3", "events": None},
        {"attributes": otlp_span()["attributes"][:3], "events": [{"name": "x"}, {"timeUnixNano": "1"}, 7]},
    ],
)
def test_otlp_is_written_in_several_ways(saved: Saved, changes: dict[str, Any]) -> None:
    usual = the_call(saved(otlp(otlp_span()), select=None))
    assert the_call(saved(otlp(otlp_span(**changes)), select=None)) == usual


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"result": otlp(otlp_span())}),
        json.dumps({"trace": otlp(otlp_span())}),
        json.dumps({"batches": otlp(otlp_span())["resourceSpans"]}),
        json.dumps(otlp(otlp_span()), indent=4),
        "\ufeff" + json.dumps(otlp(otlp_span())) + "\n",
        json.dumps(otlp(otlp_span())).replace("scopeSpans", "instrumentationLibrarySpans"),
        json.dumps(otlp(otlp_span())).replace("scopeSpans", "scope_spans").replace("resourceSpans", "resource_spans"),
    ],
)
def test_otlp_comes_in_several_wrappings(saved: Saved, text: str) -> None:
    assert the_call(saved(text)).status == 503


def test_json_lines_and_gzip(saved: Saved) -> None:
    lines = "\n".join(json.dumps(otlp(otlp_span(spanId=f"{number:016x}"))) for number in range(1, 4))
    assert saved(lines).peak == 3
    assert saved(gzip.compress(lines.encode()), name="trace.json").peak == 3


def test_a_torn_line_costs_itself_alone(saved: Saved, tmp_path: Path) -> None:
    line, other = json.dumps(otlp(otlp_span())), json.dumps(otlp(otlp_span(spanId=PARENT)))
    log = saved(f'{line}\n{line[:50]}\n{other}\n{{"other": 1}}\n{line[:-1]}')
    assert log.peak == 2
    path = tmp_path / "trace"
    assert [row.partition(": ")[0] for row in log.bad_rows] == [f"{path}:2", f"{path}:4", f"{path}:5"]
    assert log.bad_rows[1] == f"{path}:4: JSON of no format that we read with other"


BROKEN = {
    "startTimeUnixNano": ["soon", None, True, [1], "", "-5", 2**63],
    "endTimeUnixNano": [..., "0", 0, "1e99"],
    "attributes": [7, [7], [{"value": {}}], [{"key": "x", "value": {"intValue": "many"}}]],
    "traceId": [7.5],
    "kind": [{"x": 1}],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BROKEN.items() for value in values])
def test_a_broken_span_costs_itself_alone(saved: Saved, tmp_path: Path, field: str, value: Any) -> None:
    log = saved(otlp(otlp_span(), otlp_span(**{field: value}), otlp_span(spanId=PARENT)))
    assert log.peak == 2
    (row,) = log.bad_rows
    assert row.startswith(f"{tmp_path / 'trace'}: span 2: ")


def test_an_end_before_the_start_is_told(saved: Saved) -> None:
    log = saved(otlp(otlp_span(), otlp_span(endTimeUnixNano=str(START_NS - 5))))
    assert log.summary().n == 1
    assert log.bad_rows[0].endswith(": span 2: ends 5 ns before it starts")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (otlp(otlp_span(endTimeUnixNano="soon")), "none of 1 rows can be read; first: {}: span 1: no time: 'soon'"),
        ({"resourceSpans": [{"scopeSpans": 7}]}, "first: {}: span 1: scopeSpans is no list: 7"),
        ({"resourceSpans": {}}, "first: {}: span 1: resourceSpans is no list: {{}}"),
        ('{"resourceSpans": [', "{}:1: broken JSON: Expecting value at line 1, column 20"),
        ({"a": 1, "b": 2}, "{}: JSON of no format that we read with a, b"),
        ({}, "{}: JSON of no format that we read"),
        ({"traceEvents": []}, "{}: a Chrome trace, which is for looking: read what it was made of"),
        ("[" * 100_000, "{}:1: broken JSON: nested too deep"),
        ('{"x": ' + "9" * 5000 + "}", "{}:1: broken JSON: Exceeds the limit"),
        (b"\x1f\x8b\x08broken", "{}: broken gzip: "),
        (b"\x00\x01\xff", "no format that we read; it begins with"),
        ("a,b\n1,2\n", "no format that we read; it begins with 'a,b'"),
        ("PK\x03\r\x04\n", "no format that we read; it begins with 'PK\\x03'"),
        ("", "{}: the file is empty"),
        (gzip.compress(b" \n", mtime=0), "{}: the file is empty"),
    ],
)
def test_a_file_of_which_nothing_can_be_read_is_refused(
    saved: Saved, tmp_path: Path, content: Any, reason: str
) -> None:
    with pytest.raises(ReadError) as raised:
        saved(content)
    assert reason.format(tmp_path / "trace") in str(raised.value)


def test_no_span_is_an_empty_log(saved: Saved) -> None:
    assert saved(otlp()).calls == []


def jaeger_span(span: str, start_us: int, duration_us: int, parent: str | None = None, **tags: Any) -> dict[str, Any]:
    types = {bool: "bool", int: "int64", float: "float64", str: "string"}
    return {
        "traceID": TRACE,
        "spanID": span,
        "operationName": f"span {span}",
        "references": [{"refType": "CHILD_OF", "traceID": TRACE, "spanID": parent}] if parent else [],
        "startTime": start_us,
        "duration": duration_us,
        "tags": [{"key": k.replace("_", "."), "type": types[type(v)], "value": v} for k, v in tags.items()],
        "logs": [
            {
                "timestamp": start_us + 2,
                "fields": [
                    {"key": "event", "type": "string", "value": "exception"},
                    {"key": "exception.type", "type": "string", "value": "httpx.ReadTimeout"},
                ],
            }
        ],
        "processID": "p1",
    }


@pytest.mark.parametrize("wrap", [lambda trace: trace, lambda trace: {"data": [trace]}, lambda trace: [trace]])
def test_jaeger_counts_in_us(saved: Saved, wrap: Callable[[Any], Any]) -> None:
    call = jaeger_span("a", 1_790_000_000_000_005, 7, "b", span_kind="client", http_method="GET", error=True)
    agent = jaeger_span("b", 1_790_000_000_000_000, 50, span_kind="internal", gen__ai="")
    trace = {"traceID": TRACE, "spans": [call, agent], "processes": {"p1": {"serviceName": "agent", "tags": []}}}
    found = the_call(saved(wrap(trace), select=None))
    assert (found.start_ns, found.end_ns) == (1_790_000_000_000_005_000, 1_790_000_000_000_012_000)
    assert (found.span_id, found.parent_span_id, found.label) == (f"{10:016x}", f"{11:016x}", "span b")
    assert (found.outcome, found.error_type) == ("timeout", "httpx.ReadTimeout")
    assert [saved(trace, f"service.name={name}").summary().n for name in ("agent", "other")] == [2, 0]
    assert saved(trace, "http.method=GET").summary().n == 1


def test_numbers_past_2_to_the_53_are_exact(saved: Saved) -> None:
    span = jaeger_span("a", 1_790_000_000_000_000, 5)
    span["tags"].append({"key": "id", "type": "int64", "value": "9223372036854775222"})
    trace = {"traceID": TRACE, "spans": [span], "processes": {}}
    assert [saved(trace, f"id=922337203685477522{digit}").summary().n for digit in (1, 2)] == [0, 1]


def phoenix_span(**changes: Any) -> dict[str, Any]:
    return {
        "name": "ChatCompletion",
        "context": {"trace_id": TRACE, "span_id": SPAN},
        "parent_id": None,
        "span_kind": "LLM",
        "start_time": "2026-09-21T14:13:20.123456+00:00",
        "end_time": "2026-09-21T16:13:21+02:00",
        "status_code": "ERROR",
        "status_message": "",
        "attributes": {"llm": {"model_name": "m-1", "token_count": {"prompt": 12, "completion": 3}}},
        "events": [
            {"name": "First Token Stream Event", "timestamp": "2026-09-21T14:13:20.5Z"},
            {
                "name": "exception",
                "timestamp": "2026-09-21T14:13:21Z",
                "attributes": {"exception.type": "CancelledError"},
            },
        ],
        **changes,
    }


FLAT_PHOENIX = {
    "name": "ChatCompletion",
    "span_kind": "LLM",
    "parent_id": None,
    "start_time": 1_790_000_000_123.456,
    "end_time": 1_790_000_001_000,
    "status_code": "ERROR",
    "context.trace_id": TRACE,
    "context.span_id": SPAN,
    "attributes.llm.model_name": "m-1",
    "attributes.llm.token_count.prompt": 12.0,
    "attributes.llm.token_count.completion": 3.0,
    "events": phoenix_span()["events"],
}
"""A row of `get_spans_dataframe`, as pandas writes it: times in ms."""


@pytest.mark.parametrize(
    "content",
    [
        {"data": [phoenix_span()], "next_cursor": None},
        [phoenix_span()],
        json.dumps(phoenix_span()) + "\n",
        json.dumps(FLAT_PHOENIX),
    ],
)
def test_spans_of_phoenix(saved: Saved, content: Any) -> None:
    call = the_call(saved(content, select=None))
    assert (call.start_ns, call.end_ns) == (1_790_000_000_123_456_000, 1_790_000_001_000_000_000)
    assert call.first_byte_ns == 1_790_000_000_500_000_000
    assert (call.label, call.kind, call.model) == ("ChatCompletion", "generate", "m-1")
    assert (call.input_tokens, call.output_tokens) == (12, 3)
    assert (call.outcome, call.error_type) == ("cancelled", "CancelledError")


def observation(**changes: Any) -> dict[str, Any]:
    return {
        "id": SPAN,
        "traceId": TRACE,
        "type": "GENERATION",
        "name": "answer",
        "startTime": "2026-09-21T14:13:20.100Z",
        "endTime": "2026-09-21T14:13:22.100Z",
        "completionStartTime": "2026-09-21T14:13:21.100Z",
        "model": "m-1",
        "usageDetails": {"input": 5, "output": 6},
        "level": "ERROR",
        "latency": 2.0,
        "parentObservationId": None,
        **changes,
    }


SNAKE = {
    "id": SPAN, "trace_id": TRACE, "type": "GENERATION", "name": "answer", "start_time": "2026-09-21 14:13:20.100",
    "end_time": "2026-09-21 14:13:22.100", "completion_start_time": "2026-09-21 14:13:21.100", "level": "ERROR",
    "provided_model_name": "m-1", "usage_details": {"input": 5, "output": 6}, "parent_observation_id": "",
}  # fmt: skip
"""A row of an export to a bucket."""


@pytest.mark.parametrize(
    "content",
    [
        {"trace": {"id": TRACE}, "observations": [observation()]},
        {"id": TRACE, "name": "a trace", "observations": [observation()]},
        {"data": [observation()], "meta": {"page": 1}},
        [observation()],
        json.dumps(observation()) + "\n",
        json.dumps(SNAKE),
    ],
)
def test_observations_of_langfuse(saved: Saved, content: Any) -> None:
    call = the_call(saved(content, select=None))
    assert (call.start_ns, call.total_ms, call.wait_first_ms) == (1_790_000_000_100_000_000, 2000.0, 1000.0)
    assert (call.label, call.kind, call.model, call.run) == ("answer", "generate", "m-1", TRACE)
    assert (call.input_tokens, call.output_tokens, call.outcome) == (5, 6, "error")


def test_only_the_lowest_generation_counts_and_an_event_has_no_length(saved: Saved) -> None:
    below = observation(id="0000000000000002", parentObservationId=SPAN)
    event = observation(id="0000000000000003", type="EVENT", endTime=None)
    content = [observation(), below, event, observation(type="SPAN", endTime=None)]
    log = saved(content, select=None)
    assert [call.span_id for call in log.calls] == ["0000000000000002"]
    assert log.bad_rows[0].endswith("span 4: 'endTime' is missing")
    assert saved(content, "langfuse.observation.type=generation").summary().n == 2
    assert saved(content, "all").summary().n == 3


def test_ids_that_are_none_of_opentelemetry_still_join_spans(saved: Saved) -> None:
    content = [
        observation(id="cm1", traceId="my trace", type="AGENT", name="agent"),
        observation(id="cm2", traceId="my trace", parentObservationId="cm1"),
    ]
    call = the_call(saved(content, select=None))
    assert (call.run, call.trace_id, call.span_id) == ("my trace", None, None)


def readable(**changes: Any) -> dict[str, Any]:
    return {
        "name": "chat m-1",
        "context": {"trace_id": f"0x{TRACE}", "span_id": f"0x{SPAN}", "trace_state": "[]"},
        "kind": "SpanKind.CLIENT",
        "parent_id": f"0x{PARENT}",
        "start_time": "2026-09-21T14:13:20.123456Z",
        "end_time": "2026-09-21T14:13:21.000000Z",
        "status": {"status_code": "ERROR"},
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1", "error.type": "RateLimitError"},
        "events": [],
        "links": [],
        "resource": {"attributes": {"service.name": "agent", "process.pid": 42}, "schema_url": ""},
        **changes,
    }


ANY_AGENT = {
    "spans": [
        readable(
            kind="client",
            context={"trace_id": int(TRACE, 16), "span_id": int(SPAN, 16), "is_remote": False},
            parent={"trace_id": int(TRACE, 16), "span_id": int(PARENT, 16)},
            parent_id=None,
            start_time=1_790_000_000_123_456_000,
            end_time=1_790_000_001_000_000_000,
            status={"status_code": "error"},
        )
    ],
    "final_output": "done",
}


@pytest.mark.parametrize("content", [readable(), [readable()], json.dumps(readable(), indent=4) + "\n", ANY_AGENT])
def test_readable_spans(saved: Saved, content: Any) -> None:
    call = the_call(saved(content, select=None))
    assert (call.start_ns, call.end_ns) == (1_790_000_000_123_456_000, 1_790_000_001_000_000_000)
    assert (call.trace_id, call.span_id, call.parent_span_id) == (TRACE, SPAN, PARENT)
    assert (call.label, call.model, call.pid) == ("chat m-1", "m-1", 42)
    assert (call.outcome, call.error_type) == ("error", "RateLimitError")


def test_what_the_console_exporter_prints(saved: Saved) -> None:
    spans = [readable(context={"trace_id": TRACE, "span_id": f"0x{number:016x}"}) for number in range(1, 4)]
    assert saved("".join(json.dumps(span, indent=4) + "\n" for span in spans)).peak == 3


def har_entry(**changes: Any) -> dict[str, Any]:
    return {
        "startedDateTime": "2026-09-21T16:13:20.100+02:00",
        "time": 100.5,
        "request": {"method": "POST", "url": "https://api.example/v1/messages?key=secret", "bodySize": 7,
                    "postData": {"text": '{"model": "m-1", "messages": []}'}},
        "response": {"status": 200, "bodySize": 99},
        "timings": {"blocked": 10, "dns": 1, "connect": 20, "ssl": 15, "send": 0.5, "wait": 60, "receive": 9},
        "pageref": "page_1",
        **changes,
    }  # fmt: skip


def har(*entries: Any) -> dict[str, Any]:
    return {"log": {"version": "1.2", "creator": {"name": "mitmproxy"}, "entries": list(entries)}}


def test_an_entry_of_a_har(saved: Saved) -> None:
    call = the_call(saved(har(har_entry()), select=None))
    ms = 1_000_000
    assert (call.start_ns, call.total_ms, call.wait_first_ms) == (1_790_000_000_100 * ms, 100.5, 91.5)
    assert (call.pool_ns, call.connect_ns, call.tls_ns, call.send_ns) == (10 * ms, 6 * ms, 15 * ms, ms // 2)
    assert (call.wait_ns, call.receive_ns, call.connection_reused) == (60 * ms, 9 * ms, False)
    assert (call.host, call.path, call.model, call.kind) == ("api.example", "/v1/messages", "m-1", "generate")
    assert (call.run, call.client, call.request_bytes, call.bytes_received) == ("page_1", "mitmproxy", 7, 99)
    assert "secret" not in repr(call)


@pytest.mark.parametrize(
    ("changes", "outcome", "error", "first_ms"),
    [
        ({"response": {"status": 0, "_error": "net::ERR_ABORTED"}}, "error", "net::ERR_ABORTED", None),
        ({"response": {"status": 0}, "timings": {}}, "error", "no answer", None),
        ({"response": {"status": 429}}, "http_error", "429", 91.5),
        ({"response": {"status": 204}}, "ok", None, None),
        ({"timings": {"blocked": -1, "dns": -1, "connect": -1, "ssl": -1, "send": 1, "wait": 99.5}}, "ok", None, 100.5),
        ({"time": None}, "ok", None, 91.5),
    ],
)
def test_how_an_entry_ended(
    saved: Saved, changes: dict[str, Any], outcome: str, error: str | None, first_ms: float | None
) -> None:
    call = the_call(saved(har(har_entry(**changes))))
    assert (call.outcome, call.error_type, call.wait_first_ms, call.total_ms) == (outcome, error, first_ms, 100.5)
    if changes.get("timings"):
        assert (call.pool_ns, call.connect_ns, call.connection_reused) == (None, None, True)


@pytest.mark.parametrize(
    "changes",
    [{"time": -1}, {"time": "long"}, {"startedDateTime": "today"}, {"request": {}}, {"response": None}, {"request": 7}],
)
def test_a_broken_entry_costs_itself_alone(saved: Saved, changes: dict[str, Any]) -> None:
    log = saved(har(har_entry(), har_entry(**changes)))
    assert log.peak == 1
    assert "entry 2: " in log.bad_rows[0]


def test_a_har_of_a_newer_version_is_refused(saved: Saved) -> None:
    content = har(har_entry())
    content["log"]["_occupancy"] = {"schema": 2, "origin_unix_ns": 0}
    with pytest.raises(ReadError, match="version 2 is newer"):
        saved(content)


def test_a_table_of_arrivals_and_durations(saved: Saved) -> None:
    log = saved(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5.25,a,2.5,GPT-4,10,20,30,API log\n"
        "6,b,,GPT-4,10,20,30,API log\n"
        "7,b,1,ChatGPT,1,2,3,API log\n"
    )
    assert [(call.start_ns, call.end_ns, call.model, call.run, call.input_tokens) for call in log.calls] == [
        (5_250_000_000, 7_750_000_000, "GPT-4", "a", 10),
        (7_000_000_000, 8_000_000_000, "ChatGPT", "b", 1),
    ]
    assert log.bad_rows[0].endswith(":3: no duration: None")


@pytest.mark.parametrize("head", ['"Timestamp","Elapsed time"', "Timestamp,Elapsed time\r", "TIMESTAMP, elapsed "])
def test_heads_of_tables(saved: Saved, head: str) -> None:
    log = saved(f"{head}\n5.25,2.5\n")
    assert ([(call.start_ns, call.end_ns) for call in log.calls], log.bad_rows) == (
        [(5_250_000_000, 7_750_000_000)],
        [],
    )


def test_arrivals_without_durations_are_told(saved: Saved) -> None:
    with pytest.raises(ReadError, match="column 'TIMESTAMP' says when requests came, and no column how long they took"):
        saved("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.9799600,4808\n")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-09-21T14:13:20.123456789Z", START_NS),
        ("2026-09-21 14:13:20.1234567899", START_NS),
        ("2026-09-21T19:43:20,123456789+05:30", START_NS),
        ("2026-09-21T07:13:20.123456789-0700", START_NS),
    ],
)
def test_times_are_read_to_the_ns(text: str, ns: int) -> None:
    assert times.iso_to_ns(text) == ns
    assert times.iso_to_ns(times.ns_to_iso(ns)) == ns


@pytest.mark.parametrize("text", ["", "2026-13-01T00:00:00Z", "2026-01-01", "12:00:00", "2026-01-01T25:00:00Z"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="no time"):
        times.iso_to_ns(text)
