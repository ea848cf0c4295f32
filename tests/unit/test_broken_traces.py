"""Whatever stands in a file, it is read or refused with one error of ours: never another exception."""

import copy
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy.call import Call, Outcome
from occupancy.errors import OccupancyError
from occupancy.formats import har, otlp_writer
from occupancy.log import OccupancyLog
from occupancy.reading import read

TRACE, TIME_NS = f"{7:032x}", 1_790_000_000_000_000_000
ATTRIBUTES = {
    "http.request.method": "POST", "url.full": "https://api.example:8080/v1/messages", "error.type": "ReadTimeout",
    "http.response.status_code": 200, "gen_ai.usage.input_tokens": 5, "occupancy.call_id": 1, "occupancy.outcome": "ok",
    "occupancy.total_ms": 1.5, "occupancy.wait_first_ms": 0.5, "occupancy.receive_ms": 0.5, "occupancy.client_ms": 0.1,
    "occupancy.call_stack": '[["a.py", 1, "f"]]', "code.file.path": "a.py", "code.line.number": 3,
    "gen_ai.response.time_to_first_chunk": 0.1, "http.request.resend_count": 1, "occupancy.needs": 1,
}  # fmt: skip


def own_log() -> OccupancyLog:
    calls = [Call(call_id=number, start_ns=number, end_ns=number + 9, outcome=Outcome.OK) for number in (1, 2)]
    return OccupancyLog.from_calls(calls, origin_unix_ns=TIME_NS)


DOCUMENTS: dict[str, Any] = {
    "otlp": json.loads("".join(otlp_writer.pieces(own_log()))),
    "har": json.loads("".join(har.pieces(own_log()))),
    "a browser's har": {
        "log": {
            "creator": {"name": "x"},
            "entries": [
                {
                    "startedDateTime": "2026-09-21T14:13:20Z", "time": 5, "pageref": "p",
                    "request": {"method": "GET", "url": "https://x/y", "postData": {"text": '{"model": "m"}'}},
                    "response": {"status": 200, "bodySize": 3, "_error": ""},
                    "timings": {"blocked": 1, "connect": 2, "ssl": 1, "wait": 1},
                }
            ],
        }
    },
    "jaeger": {
        "data": [
            {
                "traceID": TRACE,
                "processes": {"p1": {"serviceName": "agent", "tags": [{"key": "process.pid", "value": 3}]}},
                "spans": [
                    {
                        "traceID": TRACE, "spanID": "a", "operationName": "x", "startTime": TIME_NS // 1000,
                        "duration": 5,
                        "tags": [{"key": key, "value": value} for key, value in ATTRIBUTES.items()]
                        + [{"key": "span.kind", "value": "client"}],
                        "logs": [{"timestamp": TIME_NS // 1000, "fields": [{"key": "event", "value": "first_byte"}]}],
                        "references": [{"refType": "CHILD_OF", "traceID": TRACE, "spanID": "b"}], "processID": "p1",
                    }
                ],
            }
        ]
    },
    "phoenix": {
        "data": [
            {
                "name": "x", "span_kind": "LLM", "context": {"trace_id": TRACE, "span_id": "a"}, "parent_id": "b",
                "start_time": "2026-09-21T14:13:20Z", "end_time": "2026-09-21T14:13:21Z", "status_code": "OK",
                "attributes": ATTRIBUTES, "events": [{"name": "first_byte", "timestamp": "2026-09-21T14:13:20Z"}],
            }
        ]
    },
    "langfuse": {
        "observations": [
            {
                "id": "a", "traceId": TRACE, "type": "GENERATION", "startTime": "2026-09-21T14:13:20Z",
                "endTime": "2026-09-21T14:13:21Z", "usageDetails": {"input": 3}, "model": "m", "level": "ERROR",
                "metadata": {"attributes": ATTRIBUTES, "resourceAttributes": {"process.pid": 3}},
            }
        ]
    },
    "readable": {
        "name": "x", "kind": "SpanKind.CLIENT", "context": {"trace_id": "0x1", "span_id": "0x2"}, "parent_id": "0x3",
        "start_time": TIME_NS, "end_time": TIME_NS + 5, "attributes": ATTRIBUTES, "status": {"status_code": "ERROR"},
        "events": [{"name": "first_byte", "timestamp": TIME_NS}], "resource": {"attributes": {"process.pid": 3}},
    },
}  # fmt: skip

ODD = st.sampled_from(
    [None, True, -1, 0, 2**31, 2**63, 10**400, 1.5, -0.5, float("inf"), float("nan"), 1e300, "", "x", "9" * 30, "-5",
     "\ud800", "ok", "open", "client", [], [None], [7], {}, {"x": None}, [[]], "2026-99-01T00:00:00Z", "0x", "[7]"]
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something else may stand: every member of every object and list."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*path, key)
        yield from places(member, (*path, key))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_as_it_is_it_can_be_read(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("whole") / "trace.json"
    path.write_text(json.dumps(DOCUMENTS[name]))
    log = read(path)
    assert (log.peak, log.bad_rows) == (len(log.calls), [])


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_with_something_else_in_it_it_is_read_or_refused(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    document = copy.deepcopy(DOCUMENTS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        *above, last = data.draw(st.sampled_from(list(places(document))))
        owner = document
        for key in above:
            owner = owner[key]
        if data.draw(st.booleans()):
            owner[last] = copy.deepcopy(data.draw(ODD))
        elif isinstance(owner, dict):
            del owner[last]
        if not list(places(document)):
            return
    path = tmp_path_factory.mktemp("broken") / "trace.json"
    path.write_text(json.dumps(document))
    try:
        log = read(path, data.draw(st.sampled_from([None, "all", "genai", "http", "label=x"])))
    except OccupancyError:
        return
    assert log.summary().n <= 2
    assert log.peak <= 2


BEGINNINGS = (
    b"", b"{", b"[", b'{"event":', b'{"event":"end","process":"p","call_id":1,', b"# occupancy ",
    b'# occupancy {"schema": 1, "origin_unix_ns": 0}\ncall_id,start_ns,end_ns\n', b"Timestamp,Elapsed time\n",
    b'{"resourceSpans": [', b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\x1f\x8b\x08",
    gzip.compress(b"[", mtime=0)[:-4],
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BEGINNINGS), st.binary(max_size=60) | st.text("\r\n\0 ,\"#{}[]1é'", max_size=60).map(str.encode))
def test_whatever_bytes_a_file_holds(tmp_path_factory: pytest.TempPathFactory, beginning: bytes, rest: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "file"
    path.write_bytes(beginning + rest)
    try:
        log = read(path)
    except OccupancyError:
        return
    assert log.peak <= len(rest)
