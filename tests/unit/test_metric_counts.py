"""What metrics tell, counted, against counts that go through time step by step."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from occupancy.call import Call, Kind, Outcome
from occupancy.flight import Flight
from occupancy.instrumentation import metric_counts
from occupancy.instrumentation.metric_counts import Counts, attributes_of
from occupancy.ledger import Ledger

S = 1_000_000_000


class Program:
    """Makes calls at moments that the test chooses, and collects."""

    def __init__(self, set_now: Callable[[int], None]) -> None:
        self.ledger = Ledger()
        self.counts = Counts(self.ledger)
        self.counts.keeps_ended = lambda: True
        self.ledger.observers = (self.counts,)
        self._set_now = set_now

    def start(self, now_ns: int, host: str = "a", **fields: object) -> Flight:
        self._set_now(now_ns)
        return self.ledger.start(Call(host=host, start_ns=now_ns, **fields), ())  # type: ignore[arg-type]

    def end(self, flight: Flight, now_ns: int) -> None:
        self._set_now(now_ns)
        flight.complete(now_ns)

    def in_flight(self) -> dict[object, int]:
        return {attributes["server.address"]: n for attributes, n in self.counts.in_flight()}

    def in_flight_s(self, now_ns: int) -> dict[object, float]:
        self._set_now(now_ns)
        return {attributes["server.address"]: value for attributes, value in self.counts.in_flight_s()}

    def peak(self, now_ns: int) -> int:
        self._set_now(now_ns)
        return self.counts.peak()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    now = [0]
    monkeypatch.setattr("occupancy.flight.monotonic_ns", lambda: now[0])
    monkeypatch.setattr(metric_counts, "monotonic_ns", lambda: now[0])
    return Program(lambda now_ns: now.__setitem__(0, now_ns))


def test_seconds_in_flight_grow_while_a_call_is_open(program: Program) -> None:
    first = program.start(1 * S)
    second = program.start(2 * S)
    other = program.start(2 * S, host="b")
    assert program.in_flight() == {"a": 2, "b": 1}
    assert program.in_flight_s(4 * S) == {"a": 5.0, "b": 2.0}
    program.end(first, 5 * S)
    program.end(other, 5 * S)
    assert program.in_flight_s(7 * S) == {"a": 9.0, "b": 3.0}
    program.end(second, 8 * S)
    assert program.in_flight_s(100 * S) == {"a": 10.0, "b": 3.0}
    assert program.in_flight() == {"a": 0, "b": 0}


def test_an_event_that_was_stamped_before_a_collection_turns_nothing_back(program: Program) -> None:
    flight = program.start(1 * S)
    assert program.in_flight_s(5 * S) == {"a": 4.0}
    program.end(flight, 4 * S)
    assert program.in_flight_s(6 * S) == {"a": 4.0}
    again = program.start(7 * S)
    program.end(again, 10 * S)
    assert program.in_flight_s(11 * S) == {"a": 6.0}


def test_the_peak_is_that_of_the_last_minute(program: Program) -> None:
    flights = [program.start(0), program.start(1 * S), program.start(2 * S)]
    assert program.peak(3 * S) == 3
    program.end(flights[0], 10 * S)
    program.end(flights[1], 20 * S)
    assert program.peak(70 * S - 1) == 3
    assert program.peak(70 * S) == 2
    assert program.peak(80 * S) == 1
    program.end(flights[2], 90 * S)
    assert program.peak(150 * S) == 0


def test_telemetry_does_not_count(program: Program) -> None:
    flight = program.start(0, kind=Kind.OTHER)
    program.end(flight, S)
    assert (program.in_flight(), program.peak(S), list(program.counts.take_ended())) == ({}, 0, [])


def test_a_call_that_has_ended_is_given_once(program: Program) -> None:
    flight = program.start(1 * S, host="h", port=80, path="/p", client="httpx2", method="GET")
    flight.call.pool_ns, flight.call.first_event_ns = 7, 3 * S
    program.end(flight, 5 * S)
    (ended,) = program.counts.take_ended()
    assert ended.attributes == {
        "server.address": "h", "server.port": 80, "http.request.method": "GET", "occupancy.kind": "tool",
    }  # fmt: skip
    assert ended[1:] == ("httpx2", "h", "/p", None, None, 4 * S, 2 * S, 7)
    assert list(program.counts.take_ended()) == []


@pytest.mark.parametrize(
    ("outcome", "error_type", "told"),
    [
        (Outcome.OK, None, None),
        (Outcome.HTTP_ERROR, "429", "429"),
        (Outcome.ERROR, "ReadError", "ReadError"),
        (Outcome.CANCELLED, None, "cancelled"),
        (Outcome.CLOSED_EARLY, None, None),
    ],
)
def test_how_a_call_failed_is_told(program: Program, outcome: Outcome, error_type: str | None, told: str) -> None:
    flight = program.start(0, error_type=error_type)
    flight._end(outcome, 1, 1)
    (ended,) = program.counts.take_ended()
    assert ended.error_type == told


def test_where_nobody_collects_nothing_is_kept(program: Program) -> None:
    program.counts.keeps_ended = lambda: False
    program.end(program.start(0), 1)
    assert list(program.counts.take_ended()) == []


def test_attributes_take_few_values() -> None:
    call = Call(
        host="h:8080", port=8080, method="BREW", model="m", kind=Kind.GENERATE, run="r", trace_id="t", path="/p"
    )
    assert attributes_of(call) == {
        "server.address": "h", "server.port": 8080, "http.request.method": "_OTHER", "gen_ai.request.model": "m",
        "occupancy.kind": "generate",
    }  # fmt: skip
    assert attributes_of(Call()) == {"occupancy.kind": "tool"}


@pytest.mark.parametrize(
    ("host", "port", "told"),
    [
        ("example.com", 443, ("example.com", 443)),
        ("example.com:8080", 8080, ("example.com", 8080)),
        ("::1:8080", 8080, ("::1", 8080)),
        ("::1", 443, ("::1", 443)),
        ("db:5432", None, ("db", 5432)),
        ("db", None, ("db", None)),
        ("db:", None, ("db:", None)),
        ("::1", None, ("::1", None)),
    ],
)
def test_a_server_is_its_address_and_its_port(host: str, port: int | None, told: tuple[str, int | None]) -> None:
    attributes = attributes_of(Call(host=host, port=port))
    assert (attributes.get("server.address"), attributes.get("server.port")) == told


def test_of_many_targets_the_last_are_told_as_one(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_counts, "MOST_TARGETS", 2)
    flights = [program.start(0, host=host) for host in "abcda"]
    told = [(attributes.get("server.address"), n) for attributes, n in program.counts.in_flight()]
    assert (told, len(flights)) == ([("a", 2), ("b", 1), (None, 2)], 5)
    assert program.counts.in_flight()[-1][0] == {"otel.metric.overflow": True}


def test_a_forked_child_begins_at_nothing(program: Program) -> None:
    flight = program.start(0)
    program.counts.restart()
    program.end(flight, 5 * S)
    assert (program.in_flight(), program.peak(6 * S)) == ({}, 0)


def test_an_interrupt_in_the_middle_of_counting_doubles_nothing(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger counts an event again whose counting was interrupted."""
    flight = program.start(1 * S)
    program.counts._start(flight.call)
    program.end(flight, 3 * S)
    program.counts._release(flight.call)
    assert (program.in_flight(), program.in_flight_s(9 * S)) == ({"a": 0}, {"a": 2.0})


def test_a_fault_of_ours_keeps_no_log_from_counting(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    from occupancy.log import OccupancyLog

    log = OccupancyLog()
    monkeypatch.setattr(metric_counts, "attributes_of", lambda call: 1 / 0)
    flight = program.ledger.start(Call(), (log,))
    assert log._peak == 1
    flight.complete(1)
    assert log._rows.total == 1


INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 25), st.sampled_from("ab")).map(lambda c: (c[0], c[0] + c[1], c[2])),
    max_size=12,
)


@given(intervals=INTERVALS, looks=st.lists(st.integers(0, 80), max_size=5))
def test_against_brute_force(intervals: list[tuple[int, int, str]], looks: list[int]) -> None:
    """Every event and every look in the order of time: sums, levels and the peak of a window of 10 ns."""
    with pytest.MonkeyPatch.context() as patch:
        now = [0]
        patch.setattr("occupancy.flight.monotonic_ns", lambda: now[0])
        patch.setattr(metric_counts, "monotonic_ns", lambda: now[0])
        patch.setattr(metric_counts, "PEAK_WINDOW_NS", 10)
        program = Program(lambda now_ns: now.__setitem__(0, now_ns))
        flights: dict[int, Flight] = {}
        events = [(end, 0, number) for number, (_, end, _) in enumerate(intervals)]
        events += [(start, 1, number) for number, (start, _, _) in enumerate(intervals)]
        events += [(at, 2, -1) for at in looks]
        for at, what, number in sorted(events):  # ends come before starts
            if what == 0:
                program.end(flights[number], at)
            elif what == 1:
                flights[number] = program.start(at, host=intervals[number][2])
            else:
                look(program, at, intervals)


def look(program: Program, at: int, intervals: list[tuple[int, int, str]]) -> None:
    hosts = {host for start, _, host in intervals if start <= at}
    times = {host: sum(levels_at(intervals, moment, host) for moment in range(at)) / 1e9 for host in hosts}
    assert program.in_flight_s(at) == times
    assert program.in_flight() == {host: levels_at(intervals, at, host) for host in hosts}
    recent = range(max(at - 10, 0), at + 1)
    assert program.peak(at) == max(levels_at(intervals, moment, "ab") for moment in recent)


def levels_at(intervals: list[tuple[int, int, str]], moment: int, hosts: str) -> int:
    return sum(start <= moment < end and host in hosts for start, end, host in intervals)


def test_call_that_is_known_only_at_its_end_adds_its_seconds(program: Program) -> None:
    flight = program.start(0)
    program.ledger.add(Call(host="b", start_ns=0, end_ns=3 * S, released_ns=3 * S))
    program.ledger.add(Call(host="b", start_ns=0, end_ns=3 * S, kind=Kind.OTHER))
    assert program.in_flight_s(4 * S) == {"a": 4, "b": 3}
    assert program.in_flight() == {"a": 1, "b": 0}
    program.end(flight, 4 * S)
    assert [ended.host for ended in program.counts.take_ended()] == ["a"]
