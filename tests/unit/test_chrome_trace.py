"""Chrome's trace format: slices that nest and are closed, times in their order, a counter that is the step function."""

import json
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy.call import Call, Kind, Outcome
from occupancy.formats import chrome_trace
from occupancy.formats.span_fields import PHASES
from occupancy.log import OccupancyLog

MS = 1_000_000
SPENT = st.none() | st.integers(0, 10**9)
CALLS = st.lists(
    st.builds(
        Call,
        pid=st.sampled_from([0, 7, 8]),
        kind=st.sampled_from([Kind.GENERATE, Kind.TOOL, Kind.OTHER]),
        label=st.none() | st.text(max_size=5),
        start_ns=st.integers(0, 50).map(lambda n: n * 100 * MS + n),
        end_ns=st.none() | st.integers(0, 10**10),
        **dict.fromkeys(PHASES, SPENT),
    ),
    max_size=6,
)


def log_of(calls: list[Call]) -> OccupancyLog:
    for number, call in enumerate(calls, start=1):
        call.call_id = call.logical_id = number
        if call.end_ns is not None:
            call.end_ns = max(call.end_ns, call.start_ns)
            call.outcome = Outcome.OK
    return OccupancyLog.from_calls(calls, origin_ns=0, origin_unix_ns=1_790_000_000 * 10**9)


def events_of(log: OccupancyLog) -> list[dict[str, Any]]:
    trace: dict[str, Any] = json.loads("".join(chrome_trace.pieces(log)))
    assert trace["displayTimeUnit"] == "ms"
    return list(trace["traceEvents"])


@settings(max_examples=200, deadline=None)
@given(CALLS)
def test_slices_nest_and_the_counter_is_the_step_function(calls: list[Call]) -> None:
    log = log_of(calls)
    events = events_of(log)
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert {event["pid"] for event in timed} <= {event["pid"] for event in events if event["ph"] == "M"}

    opened: dict[Any, list[str]] = defaultdict(list)
    begun: Counter[str] = Counter()
    for event in timed:
        slices = opened[event["pid"], event.get("id2", {}).get("local")]
        if event["ph"] == "b":
            slices.append(event["name"])
            begun[event["cat"]] += len(slices) == 1
            assert len(slices) <= 2
        elif event["ph"] == "e":
            assert slices.pop() == event["name"]
    assert not any(opened.values())
    n_other = sum(call.kind == Kind.OTHER for call in calls)
    assert (begun["call"], begun["other"]) == (len(calls) - n_other, n_other)

    steps = log.steps()
    counted = [(round(event["ts"] * 1000), event["args"]["in flight"]) for event in timed if event["ph"] == "C"]
    assert counted == list(zip(steps.t_ns.tolist(), steps.in_flight.tolist(), strict=True))


def test_a_call_with_its_phases() -> None:
    call = Call(label="plan", pid=42, start_ns=MS, end_ns=10 * MS, pool_ns=MS, connect_ns=2 * MS, wait_ns=4 * MS,
                receive_ns=MS, host="api.example", path="/v1/chat")  # fmt: skip
    events = events_of(log_of([call]))
    assert [(event["ph"], event["name"], event.get("ts")) for event in events] == [
        ("M", "process_name", None),
        ("b", "plan", 1000.0),
        ("b", "pool", 1000.0),
        ("C", "calls", 1000.0),
        ("e", "pool", 2000.0),
        ("b", "connect", 2000.0),
        ("e", "connect", 4000.0),
        ("b", "wait", 4000.0),
        ("e", "wait", 8000.0),
        ("b", "receive", 9000.0),
        ("e", "receive", 10000.0),
        ("e", "plan", 10000.0),
        ("C", "calls", 10000.0),
    ]
    assert events[1]["id2"] == {"local": "0x1"}
    assert {event["pid"] for event in events} == {42}
    assert (events[1]["args"]["host"], events[1]["args"]["path"]) == ("api.example", "/v1/chat")


def test_a_call_that_never_ended_is_closed_where_the_step_function_ends() -> None:
    calls = [Call(label="lost", start_ns=0), Call(label="done", start_ns=MS, end_ns=3 * MS)]
    ends = {event["name"]: event["ts"] for event in events_of(log_of(calls)) if event["ph"] == "e"}
    assert ends == {"done": 3000.0, "lost": 3000.001}


@pytest.mark.parametrize("log", [OccupancyLog.from_calls([])])
def test_an_empty_log_is_an_empty_trace(log: OccupancyLog) -> None:
    assert events_of(log) == []
