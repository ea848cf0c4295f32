"""What is written is read back, whatever calls hold: OTLP, HAR, and our CSV."""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy.call import FIELD_TYPES, FIELDS, Call, Frame, Kind, Outcome
from occupancy.errors import InputError
from occupancy.formats import har, occupancy_csv, otlp_writer
from occupancy.formats.call_records import to_record
from occupancy.formats.writing import write
from occupancy.log import OccupancyLog
from occupancy.reading import read

WRITERS = {"calls.json": otlp_writer.pieces, "calls.har": har.pieces, "calls.csv": occupancy_csv.pieces}
ORIGIN_NS, ORIGIN_UNIX_NS = 7_000_000_000, 1_790_000_000_123_456_789

TEXT = st.none() | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), min_size=1, max_size=9
)
COUNT = st.none() | st.integers(0, 2**31 - 1)
SMALL = st.none() | st.integers(0, 2**15 - 1)
SPENT = st.none() | st.integers(0, 10**15)
STAMP = st.none() | st.integers(0, 10**15)


def hex_digits(n: int) -> st.SearchStrategy[str | None]:
    return st.none() | st.integers(1, 16**n - 1).map(lambda value: f"{value:0{n}x}")


VALUES: dict[str, st.SearchStrategy[object]] = {
    "pid": st.integers(0, 2**22),
    "attempt": st.integers(0, 99),
    "trace_id": hex_digits(32),
    "span_id": hex_digits(16),
    "parent_span_id": hex_digits(16),
    "kind": st.sampled_from(Kind),
    "siblings": SMALL,
    "call_stack": st.just(())
    | st.tuples(st.builds(Frame, st.just("a b.py"), st.integers(1, 999), st.just("f.<locals>.g"))),
    "start_ns": st.integers(0, 10**15),
    "status": st.none() | st.integers(100, 599),
    "outcome": st.sampled_from([outcome for outcome in Outcome if outcome != Outcome.OPEN]),
    "retry_after_s": st.none() | st.floats(0, 1e9),
    "request_bytes": st.none() | st.integers(0, 2**60),
    "bytes_received": st.integers(0, 2**60),
    "chunks": st.integers(0, 2**31 - 1),
    "chunks_after_gap": SMALL,
    "sync_in_event_loop": st.booleans(),
    **dict.fromkeys(("limit_requests", "remaining_requests", "input_tokens", "output_tokens", "needs"), COUNT),
    **dict.fromkeys(("limit_tokens", "remaining_tokens"), st.none() | st.integers(0, 2**63 - 1)),
    **dict.fromkeys(("headers_ns", "first_byte_ns", "first_event_ns", "last_byte_ns"), STAMP),
    **dict.fromkeys(
        ("client_ns", "gate_ns", "pool_ns", "connect_ns", "tls_ns", "send_ns", "wait_ns", "receive_ns"), SPENT
    ),
    **dict.fromkeys(("max_gap_ns", "max_gap_after_ns"), SPENT),
}
LATER = ("call_id", "logical_id", "end_ns", "released_ns", "in_flight_start", "in_flight_end")
"""What follows from the others."""


def _of_type(name: str) -> st.SearchStrategy[object]:
    kinds = {bool: st.booleans(), int: st.integers(0, 2**15 - 1), str: TEXT}
    return st.none() | next(strategy for kind, strategy in kinds.items() if kind in FIELD_TYPES[name])


@st.composite
def logs(draw: st.DrawFn) -> OccupancyLog:
    """A log in which every field of a call may hold anything that it can."""
    calls = []
    for number in range(1, draw(st.integers(0, 4)) + 1):
        fields = {
            name: draw(VALUES[name] if name in VALUES else _of_type(name)) for name in FIELDS if name not in LATER
        }
        call = Call(**fields, call_id=number, logical_id=draw(st.integers(1, number)))  # type: ignore[arg-type]
        if draw(st.booleans()):
            call.end_ns = call.start_ns + draw(st.integers(0, 10**12))
            call.released_ns = call.end_ns + draw(st.integers(0, 10**6))
        else:
            call.outcome = Outcome.OPEN
        calls.append(call)
    return OccupancyLog.from_calls(calls, origin_ns=ORIGIN_NS, origin_unix_ns=ORIGIN_UNIX_NS)


def state(log: OccupancyLog) -> object:
    """All that a log holds, its stamps since its origin."""
    calls = [[to_record(call) for call in calls] for calls in (log.calls, log.open_calls)]
    return calls, log.peak, log.time_at_level_ns, log.bad_rows


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=100, deadline=None)
@given(log=logs())
def test_what_is_written_is_read_back(name: str, tmp_path_factory: pytest.TempPathFactory, log: OccupancyLog) -> None:
    path = tmp_path_factory.mktemp("round_trip") / name
    write(path, WRITERS[name](log))
    again = read(path)
    assert state(again) == state(log)
    if log.calls or log.open_calls:
        assert again.origin_unix_ns == ORIGIN_UNIX_NS


def two_calls() -> OccupancyLog:
    plan = Call(call_id=1, logical_id=1, label="plan", method="POST", host="api.example:8080", path="/v1/chat",
                status=200, model="m-1", start_ns=10**9, pool_ns=10**8, connect_ns=2 * 10**8, tls_ns=10**8,
                headers_ns=2 * 10**9, first_byte_ns=2 * 10**9, last_byte_ns=3 * 10**9, end_ns=3 * 10**9,
                receive_ns=10**9, outcome=Outcome.OK)  # fmt: skip
    lost = Call(call_id=2, logical_id=2, label="lost", start_ns=2 * 10**9, end_ns=4 * 10**9, outcome=Outcome.TIMEOUT)
    return OccupancyLog.from_calls([plan, lost], origin_ns=10**9, origin_unix_ns=ORIGIN_UNIX_NS)


@pytest.mark.parametrize("name", WRITERS)
def test_a_name_that_ends_with_gz_is_compressed(name: str, tmp_path: Path) -> None:
    write(tmp_path / f"{name}.gz", WRITERS[name](two_calls()))
    assert gzip.decompress((tmp_path / f"{name}.gz").read_bytes())[:1] in b"{#"
    assert state(read(tmp_path / f"{name}.gz")) == state(two_calls())


@pytest.mark.parametrize("name", WRITERS)
def test_half_a_character_stops_no_writer(name: str, tmp_path: Path) -> None:
    call = Call(call_id=1, label="\ud800", start_ns=0, end_ns=1, outcome=Outcome.OK)
    write(tmp_path / name, WRITERS[name](OccupancyLog.from_calls([call], origin_unix_ns=ORIGIN_UNIX_NS)))
    assert len(read(tmp_path / name).calls) == 1


@pytest.mark.parametrize("pieces", WRITERS.values())
def test_a_folder_that_is_not_there_is_named(pieces: Callable[[OccupancyLog], Iterable[str]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no_such_folder"):
        write(tmp_path / "no_such_folder" / "x", pieces(two_calls()))


def test_otlp_as_others_read_it() -> None:
    document = json.loads("".join(otlp_writer.pieces(two_calls())))
    plan, lost = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (plan["name"], plan["kind"], plan["status"], lost["status"]) == ("plan", 3, {}, {"code": 2})
    assert int(plan["startTimeUnixNano"]) == ORIGIN_UNIX_NS
    assert int(plan["endTimeUnixNano"]) == ORIGIN_UNIX_NS + 2 * 10**9
    assert plan["traceId"] == lost["traceId"] != ""
    assert plan["spanId"] != lost["spanId"]
    attributes = {pair["key"]: pair["value"] for pair in plan["attributes"]}
    assert attributes["server.address"] == {"stringValue": "api.example"}
    assert attributes["server.port"] == {"intValue": "8080"}
    assert attributes["http.response.status_code"] == {"intValue": "200"}
    assert attributes["gen_ai.request.model"] == {"stringValue": "m-1"}
    assert attributes["occupancy.pool_ms"] == {"doubleValue": 100.0}
    assert [event["name"] for event in plan["events"]] == ["headers", "first_byte", "last_byte", "released"]


def test_har_as_others_read_it() -> None:
    log = json.loads("".join(har.pieces(two_calls())))["log"]
    plan, lost = log["entries"]
    assert plan["startedDateTime"] == "2026-09-21T14:13:20.123456789Z"
    assert plan["request"]["url"] == "https://api.example:8080/v1/chat"
    assert plan["time"] == 2000.0
    assert plan["timings"] == {
        "blocked": 100.0, "dns": -1, "connect": 300.0, "ssl": 100.0, "send": 0.0, "wait": 600.0, "receive": 1000.0,
    }  # fmt: skip
    assert (plan["response"]["status"], lost["response"]["status"]) == (200, 0)
    for entry in log["entries"]:  # the format's rule: ssl is within connect
        assert sum(spent for name, spent in entry["timings"].items() if name != "ssl" and spent > 0) == entry["time"]


def test_a_har_that_another_tool_has_gone_over_is_read_as_any_other() -> None:
    document = json.loads("".join(har.pieces(two_calls())))
    for owner in (document["log"], *document["log"]["entries"]):
        owner.pop("_occupancy")
    plan, lost = har.read(document, "x.har").calls
    assert (plan.end_ns or 0) - plan.start_ns == 2 * 10**9
    assert (plan.pool_ns, plan.connect_ns, plan.tls_ns) == (10**8, 2 * 10**8, 10**8)
    assert (plan.label, plan.status, plan.outcome) == ("POST /v1/chat", 200, Outcome.OK)
    assert (lost.status, lost.outcome) == (None, Outcome.ERROR)
