"""Steps against an oracle that walks every instant, and against values computed elsewhere for real traces."""

import datetime
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.analysis.columns import DTYPES, MISSING, columns_of
from occupancy.analysis.steps import (
    IntervalCounts,
    Steps,
    closed_end,
    count_intervals,
    counted,
    steps,
    steps_in_flight,
    steps_on_wire,
    wire_start,
)
from occupancy.call import FIELDS, Call, Frame
from occupancy.errors import InputError

TRACES = Path(__file__).parents[3] / "shared" / "traces"
Interval = tuple[int, int]


def from_intervals(intervals: list[Interval]) -> Steps:
    starts, ends = (np.array([pair[side] for pair in intervals], dtype=np.int64) for side in (0, 1))
    return steps(starts, ends)


def covering(intervals: list[Interval], t: int) -> int:
    return sum(start <= t < end for start, end in intervals)


def walk(intervals: list[Interval]) -> Iterator[tuple[int, int]]:
    """Steps by asking at each time how many intervals cover it."""
    level = 0
    for t in sorted({t for pair in intervals if pair[0] < pair[1] for t in pair}):
        if (now := covering(intervals, t)) != level:
            yield t, now
            level = now


SHORT = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), max_size=12)


@given(SHORT)
def test_steps_are_what_counting_at_each_time_gives(intervals: list[Interval]) -> None:
    found = from_intervals(intervals)
    assert list(zip(found.t_ns.tolist(), found.in_flight.tolist(), strict=True)) == list(walk(intervals))


@given(SHORT)
def test_totals_are_sums_over_single_nanoseconds(intervals: list[Interval]) -> None:
    found = from_intervals(intervals)
    used = [pair for pair in intervals if pair[0] < pair[1]]
    first, last = (min(s for s, _ in used), max(e for _, e in used)) if used else (0, 0)
    levels = [covering(used, t) for t in range(first, last)]
    assert found.wall_ns == len(levels)
    assert found.peak == max(levels, default=0)
    assert found.busy_ns == sum(level > 0 for level in levels)
    assert found.mean == pytest.approx(sum(levels) / len(levels) if levels else 0.0)
    times = Counter(levels)
    assert found.time_at_level == tuple(times[level] for level in range(found.peak + 1))


@given(SHORT)
def test_at_is_the_level_at_one_time_and_at_many(intervals: list[Interval]) -> None:
    found = from_intervals(intervals)
    times = np.arange(-22, 22)
    expected = [covering(intervals, t) for t in times.tolist()]
    assert found.at(times).tolist() == expected
    assert [found.at(t) for t in times.tolist()] == expected


@given(SHORT, st.lists(st.integers(-22, 22), min_size=2, max_size=9).map(sorted))
def test_envelope_is_the_extremes_over_the_nanoseconds_of_a_slot(intervals: list[Interval], edges: list[int]) -> None:
    lowest, highest = from_intervals(intervals).envelope(np.array(edges))
    for slot, (begin, end) in enumerate(itertools.pairwise(edges)):
        levels = [covering(intervals, t) for t in range(begin, max(end, begin + 1))]
        assert (lowest[slot], highest[slot]) == (min(levels), max(levels))


def test_empty() -> None:
    found = from_intervals([])
    assert (found.t_ns.size, found.in_flight.size) == (0, 0)
    assert (found.peak, found.wall_ns, found.busy_ns, found.mean, found.time_at_level) == (0, 0, 0, 0.0, (0,))
    assert found.at(5) == 0
    assert found.slots(3).tolist() == [0, 0, 0, 0]
    assert found.envelope(found.slots(3))[1].tolist() == [0, 0, 0]


def test_touching_calls_make_no_step() -> None:
    found = from_intervals([(0, 10), (10, 30), (40, 50)])
    assert found.t_ns.tolist() == [0, 30, 40, 50]
    assert found.in_flight.tolist() == [1, 0, 1, 0]


def test_the_reference_agent() -> None:
    serial = from_intervals([(0, 200), (200, 550), (550, 900), (900, 1100)])
    overlapped = from_intervals([(0, 200), (200, 550), (200, 550), (550, 750)])
    assert (serial.peak, serial.mean, serial.wall_ns) == (1, 1.0, 1100)
    assert (overlapped.peak, overlapped.wall_ns, overlapped.time_at_level) == (2, 750, (0, 400, 350))
    assert round(overlapped.mean, 2) == 1.47


def test_times_beyond_a_float_stay_exact() -> None:
    base = 1_758_028_498_928_802_001  # an odd ns since 1970: float64 would round it
    found = from_intervals([(base, base + 3), (base + 1, base + 2)])
    assert found.t_ns.tolist() == [base, base + 1, base + 2, base + 3]
    assert found.time_at_level == (0, 2, 1)


def test_totals_do_not_overflow() -> None:
    year_ns = 365 * 86_400 * 10**9
    assert from_intervals([(0, 100 * year_ns)] * 5).mean == 5.0


def test_a_span_that_cannot_be_sorted_exactly_is_refused() -> None:
    with pytest.raises(InputError, match="-4611686018427387904 ns to 1 ns"):
        from_intervals([(-(2**62), 0), (0, 1)])


def test_many_touching_and_nested_calls_agree_with_a_running_count() -> None:
    random = np.random.default_rng(7)
    start = random.integers(0, 20_000, 50_000)
    end = start + random.integers(0, 300, 50_000)
    change = np.zeros(20_301, dtype=np.int64)
    np.add.at(change, start, 1)
    np.add.at(change, end, -1)
    assert np.array_equal(steps(start, end).at(np.arange(20_301)), np.cumsum(change))


def test_what_is_dropped_is_counted() -> None:
    start = np.array([0, 5, 9, MISSING, 3, 7])
    end = np.array([4, 5, 8, 3, MISSING, 8])
    assert count_intervals(start, end) == IntervalCounts(used=2, zero_length=1, end_before_start=1, missing=2)
    assert steps(start, end).t_ns.tolist() == [0, 4, 7, 8]


# Columns


def test_columns_hold_every_field_with_its_type() -> None:
    stack = (Frame("a.py", 1, "f"), Frame("b.py", 2, "g"))
    columns = columns_of([Call(call_stack=stack, connection_reused=True), Call(call_stack=stack, retry_after_s=1.5)])
    assert tuple(columns) == FIELDS
    assert [columns["call_stack"][0], columns["call_stack"].shape] == [stack, (2,)]
    assert columns["connection_reused"].tolist() == [1, MISSING]
    assert np.isnan(columns["retry_after_s"][0])
    assert columns["retry_after_s"][1] == 1.5
    assert columns["label"].tolist() == [None, None]
    assert {name: column.dtype for name, column in columns.items()} == {n: np.dtype(t) for n, t in DTYPES.items()}
    assert {DTYPES[n] for n in ("pid", "status", "end_ns", "connection_reused", "sync_in_event_loop")} == {np.int64}
    assert {DTYPES[n] for n in ("label", "kind", "outcome", "call_stack")} == {object}


def test_columns_of_nothing() -> None:
    columns = columns_of([])
    assert all(column.size == 0 for column in columns.values())
    assert steps_in_flight(columns).peak == 0
    assert steps_on_wire(columns).peak == 0


def test_on_the_wire_begins_past_client_gate_and_pool() -> None:
    columns = columns_of(
        [
            Call(start_ns=100, end_ns=200, outcome="ok", client_ns=1, gate_ns=20, pool_ns=30),
            Call(start_ns=100, end_ns=200, outcome="ok", pool_ns=30),
            Call(start_ns=100, end_ns=200, outcome="timeout", pool_ns=100),
        ]
    )
    assert wire_start(columns).tolist() == [151, 130, 200]
    assert columns["start_ns"].tolist() == [100, 100, 100]
    assert (steps_in_flight(columns).peak, steps_on_wire(columns).peak) == (3, 2)
    assert steps_on_wire(columns).t_ns.tolist() == [130, 151, 200]


def test_kind_other_occupies_nothing() -> None:
    columns = columns_of([Call(start_ns=0, end_ns=9, outcome="ok"), Call(start_ns=0, end_ns=99, kind="other")])
    assert counted(columns).tolist() == [True, False]
    assert steps_in_flight(columns).t_ns.tolist() == [0, 9]


def test_three_calls_open_when_the_process_died_are_three_in_flight() -> None:
    columns = columns_of([Call(start_ns=t) for t in (0, 10, 20)])
    found = steps_in_flight(columns)
    assert closed_end(columns).tolist() == [21, 21, 21]
    assert (found.peak, found.at(20), found.at(21)) == (3, 3, 0)


def test_an_open_call_lasts_to_the_last_stamp_of_its_own_process() -> None:
    columns = columns_of(
        [
            Call(pid=1, start_ns=0, first_byte_ns=70),
            Call(pid=1, start_ns=5, end_ns=50, released_ns=60, outcome="ok"),
            Call(pid=2, start_ns=5, end_ns=500, outcome="ok"),
            Call(pid=2, start_ns=8),
        ]
    )
    assert closed_end(columns).tolist() == [71, 50, 500, 501]
    assert closed_end(columns, until_ns=900).tolist() == [900, 50, 500, 900]
    assert columns["end_ns"].tolist() == [MISSING, 50, 500, MISSING]


def test_an_ended_call_without_an_end_is_a_bad_row() -> None:
    columns = columns_of([Call(start_ns=0, outcome="ok"), Call(start_ns=5, end_ns=9, outcome="ok")])
    assert closed_end(columns).tolist() == [MISSING, 9]
    assert steps_in_flight(columns).peak == 1


# Real traces, against values computed without this project


def har(path: Path) -> list[Interval]:
    intervals = []
    for entry in json.loads(path.read_text())["log"]["entries"]:
        start = datetime.datetime.fromisoformat(entry["startedDateTime"])
        since = start - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        start_ns = (since // datetime.timedelta(microseconds=1)) * 1000
        time_ms = entry["time"]
        if time_ms is None:
            time_ms = sum(max(part, 0) for part in entry["timings"].values() if isinstance(part, int | float))
        intervals.append((start_ns, start_ns + round(time_ms * 1000) * 1000))
    return intervals


def jaeger(path: Path) -> list[Interval]:
    document = json.loads(path.read_text())
    traces = document.get("data", [document])
    spans = [span for trace in traces for span in trace["spans"]]
    return [(span["startTime"] * 1000, (span["startTime"] + span["duration"]) * 1000) for span in spans]


def otlp(path: Path) -> list[Interval]:
    text = path.read_text()
    documents = [json.loads(line) for line in text.splitlines()] if ".txt" in path.name else [json.loads(text)]
    spans = [
        span
        for document in documents
        for resource in document.get("result", document)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    return [(int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])) for span in spans]


def known_traces() -> list[tuple[str, dict[str, float]]]:
    if not (TRACES / "oracle.json").exists():
        return []
    wanted = {"har": "entries", "jaeger": "all_spans", "otlp": "all_spans"}
    files = json.loads((TRACES / "oracle.json").read_text())["files"]
    return [
        (item["file"], item["oracle"][wanted[folder]])
        for item in files
        if (folder := Path(item["file"]).parts[0]) in wanted and item["oracle"]
    ]


@pytest.mark.skipif(not known_traces(), reason="the real traces are not here")
@pytest.mark.parametrize(("name", "oracle"), known_traces())
def test_real_traces(name: str, oracle: dict[str, float]) -> None:
    reader = {"har": har, "jaeger": jaeger, "otlp": otlp}[Path(name).parts[0]]
    intervals = reader(TRACES / name)
    found = from_intervals(intervals)
    assert len(intervals) == oracle["n"]
    if not intervals:
        return
    assert found.peak == oracle["peak"]
    assert found.wall_ns == oracle["wall_ns"]
    assert found.busy_ns == oracle["ge1_ns"]
    assert found.time_at_level[1] == oracle["eq1_ns"]
    assert found.mean == pytest.approx(oracle["mean"], rel=1e-12)
    assert found.t_ns[int(found.in_flight.argmax())] - found.t_ns[0] == oracle["peak_at_ns_after_t0"]
